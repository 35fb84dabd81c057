"""The checks of single tables, and what they need. A new check is a function in this package and a line in `CHECKS`.

The tables of spaces are checked together (`observe.validation.spaces`), unique secondary indexes across two rows
(`observe.validation.secondary_keys`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from config.deployment import Config
from observe.query_engines import QueryEngine, engine_of
from observe.validation.check import (
    Check,
    CheckFacts,
    OpenTable,
    Rows,
    readable_frame,
    readable_table,
)
from observe.validation.origins import origins_checks
from observe.validation.suites import system_table_checks
from observe.validation.user_suites import read_user_suites
from pipeline.state import State
from schemas.errors import ConfigurationError
from schemas.names import is_space_table, table_of_exact_tuples
from schemas.tables import SYSTEM_TABLES
from warehouse.delta.location import has_known_scheme, location_of
from warehouse.delta.newest_epoch import NEVER_ROLLED_BACK
from warehouse.delta.read import LARGEST_IN_MEMORY_BYTES, arrow_of, columns_of, size_of
from warehouse.warehouse import Warehouse

CHECKS: tuple[Callable[[OpenTable, State, CheckFacts], Iterator[Check]], ...] = (
    system_table_checks,
    origins_checks,
)
"""Each function yields checks of tables at the newest epoch."""


DEFAULT_SUITES_FOLDER = "expectations"
"""The default folder of the user's suites, next to the configuration."""


class CheckedTables:
    """The tables at the Delta versions that they have in the newest epoch."""

    def __init__(
        self, warehouse: Warehouse, state: State, start_spark: Callable[[], SparkSession] | None = None
    ) -> None:
        self._warehouse, self._start_spark = warehouse, start_spark
        first_versions = {name: 0 for name in SYSTEM_TABLES if name not in NEVER_ROLLED_BACK}
        self._versions = {**first_versions, **state.versions}
        self._engine: QueryEngine | None = None

    @property
    def warehouse(self) -> Warehouse:
        """The warehouse, with a Spark session."""
        if self._warehouse.spark is None and self._start_spark is not None:
            self._warehouse = self._warehouse.with_session(self._start_spark())
        return self._warehouse

    def __call__(self, table: str) -> DataFrame:
        """Return the rows of a table."""
        version = self._versions.get(table)
        if is_space_table(table):
            return self.warehouse.read(table, version)
        return self.warehouse.read_system_table(table, version)

    def readable(self, table: str) -> Rows:
        """Return the rows of one of the aggregator's own tables, as Great Expectations takes them."""
        opened = self._warehouse.opened(table, self._versions.get(table))
        if size_of(opened) > LARGEST_IN_MEMORY_BYTES:
            return readable_frame(self(table))
        return readable_table(self.rows(table))

    def rows(self, table: str) -> pa.Table:
        """Return the rows of a small table."""
        opened = self._warehouse.opened(table, self._versions.get(table))
        return arrow_of(opened, to_arrow_schema(columns_of(opened), timezone="UTC"))

    def query(self, sql: str) -> pa.Table:
        """Return the result of a query on `{changelog}`."""
        if self._engine is None:
            self._engine = engine_of(self._warehouse, ["_changelog"], lambda: self.warehouse.session)
            self._engine.add("changelog", "_changelog", self._versions.get("_changelog"))
        return self._engine.query(sql)


def check_facts(open_table: OpenTable, state: State, config: Config, moment: datetime) -> CheckFacts:
    """Return the facts that checks of all tables use; `moment` is the time of the validation."""
    ids = sorted(one for one in open_table.rows("_cluster")["global_id"].to_pylist() if one is not None)
    tolerance = config.validation.clock_tolerance()
    replicasets = tuple(sorted(one.id for one in state.replicasets.values()))
    return CheckFacts(tuple(ids), replicasets, None if tolerance is None else moment + tolerance)


def checks(
    open_table: OpenTable,
    state: State,
    facts: CheckFacts,
    space_tables: Sequence[str],
    user_suites: Mapping[str, Sequence[Any]],
) -> Iterator[Check]:
    """Yield all checks of single tables."""
    for make in CHECKS:
        yield from make(open_table, state, facts)
    for table, expectations in user_suites.items():
        if table in space_tables:
            rows = readable_frame(open_table(table_of_exact_tuples(state.versions, table)))
            yield Check(table, rows, tuple(expectations), ("_key",))


def tables_of_spaces(state: State, config: Config, space_names: Sequence[str] | None) -> list[str]:
    """Return the tables of spaces with some names; without `space_names`, the tables of all spaces."""
    space_tables = sorted(filter(is_space_table, state.versions))
    if not space_names:
        return space_tables
    ids = [None, *(one.id for one in state.replicasets.values())]
    found = {
        space: {config.spaces.table(space, replicaset_id=i) for i in ids} & set(space_tables)
        for space in space_names
    }
    missing = [space for space, tables in found.items() if not tables]
    if missing:
        raise ConfigurationError(f"there is no table of {', '.join(missing)}", advice="see --space")
    return sorted(set().union(*found.values()))


def user_expectations(config: Config, file: str) -> dict[str, list[Any]]:
    """Return the user's expectations by table, without Spark; by default the suites are next to the file."""
    named = config.validation.expectations
    folder = Path(named) if named else Path(file).resolve().parent / DEFAULT_SUITES_FOLDER
    if not folder.is_dir():
        if named:
            raise ConfigurationError(f"there is no folder {folder}", path="validation.expectations")
        return {}
    if not has_known_scheme(config.warehouse):
        raise ConfigurationError("suites of your own need a warehouse that delta-rs opens", path="warehouse")
    tables = location_of(config.warehouse, config.database).tables()
    return read_user_suites(folder, list(filter(is_space_table, tables)))
