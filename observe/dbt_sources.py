"""Describes the tables of a warehouse as a dbt source: YAML with columns, descriptions and tests.

The format is dbt's (docs.getdbt.com, "Source properties", dbt 1.8 or later: `data_tests`). `tables_at_epoch` reads the
tables with delta-rs; `source_yaml` has no I/O.

The tests check what always holds: `_key` of a space's table is unique, and columns that validation expects to have no
NULL are not null. The columns of a primary key have no test, since two keys may have equal columns: if a value does not
fit the type of its column, the column has the nearest value of the type, or NULL (and `_misfits` names the column).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from deltalake import DeltaTable

from schemas.descriptions import COLUMNS, TABLES, VERSION_COLUMNS
from schemas.names import column_name, exact_table, is_space_table, unescape
from schemas.states import SpaceState
from schemas.tables import OWN_TABLES
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.read import newest_of_each

NEVER_NULL_IN_SPACES = ("_key", "_tuple", "_replicaset_id")
"""Columns of a space's table that are never null."""

UNKNOWN_COLUMN_DESCRIPTION = "Column that this release does not write."
"""Description of a column that only another release of the aggregator knows."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: str
    """The SQL type."""
    description: str
    is_unique: bool = False
    is_never_null: bool = False
    """Whether no two rows have the same value, and whether no row has NULL."""

    def as_dbt(self) -> dict[str, Any]:
        """Return the column as an entry of dbt's YAML."""
        tests = [
            name for name, holds in (("not_null", self.is_never_null), ("unique", self.is_unique)) if holds
        ]
        entry = {"name": self.name, "description": self.description, "data_type": self.type}
        return entry | ({"data_tests": tests} if tests else {})


@dataclass(frozen=True)
class Table:
    """A table with its description; `version` is its Delta version in the epoch, None if no epoch names the table."""

    name: str
    description: str
    version: int | None
    columns: Sequence[Column]

    def as_dbt(self) -> dict[str, Any]:
        """Return the table as an entry of dbt's YAML."""
        entry = {"name": self.name, "description": self.description}
        meta = {} if self.version is None else {"config": {"meta": {"delta_version": self.version}}}
        return entry | meta | {"columns": [column.as_dbt() for column in self.columns]}


def source_yaml(database: str, epoch: int, tables: Iterable[Table]) -> str:
    """Return a dbt source as YAML text."""
    source = {
        "name": database,
        "description": "Tables of several Tarantool replicasets, kept by the aggregator.",
        "schema": database,
        "loader": "tarantool-aggregator",
        "config": {"meta": {"epoch": epoch}},
        "tables": [table.as_dbt() for table in tables],
    }
    document = {"version": 2, "sources": [source]}
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    return "# Made by `aggregator views --dbt`; make it again after spaces were added.\n" + text


def tables_at_epoch(location: WarehouseLocation, versions: Mapping[str, int]) -> list[Table]:
    """Return the descriptions of all tables: as of an epoch, or as of now if epochs do not name a table."""
    descriptions = field_descriptions(location, versions.get("_schema"))
    tables = []
    for name in location.tables():
        opened = location.open(name, versions.get(name))
        if opened is not None and (name in versions or name in TABLES):
            tables.append(describe_table(name, versions.get(name), opened, descriptions))
    return tables


def field_descriptions(location: WarehouseLocation, version: int | None) -> dict[str, dict[str, str]]:
    """Return, by table and column, the description of the space's field, from its newest definition in `_schema`."""
    opened = location.open("_schema", version)
    rows = [] if opened is None else newest_of_each(opened, ["replicaset_id", "space_id"])
    result: dict[str, dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: (row["replicaset_id"], row["space_id"])):
        if row["table_name"] is not None and row["state"] == SpaceState.PRESENT:
            result.setdefault(row["table_name"], {}).update(
                _describe_fields(row["format"], row["primary_key"])
            )
    return result


def _describe_fields(format_json: str, key_json: str) -> dict[str, str]:
    """Return, by column, the description of a space's field: `Field 1, unsigned; part 1 of the primary key.`."""
    parts: dict[int, int] = {}
    for number, part in enumerate(json.loads(key_json), start=1):
        parts.setdefault(part["field"], number)
    return {
        column_name(field["name"]): f"Field {index + 1}, {field['type']}"
        + (f"; part {parts[index]} of the primary key." if index in parts else ".")
        for index, field in enumerate(json.loads(format_json))
    }


def describe_table(
    name: str, version: int | None, delta_table: DeltaTable, descriptions: Mapping[str, Mapping[str, str]]
) -> Table:
    """Return the description of a table."""
    types = {field.name: sql_type(json.loads(field.type.to_json())) for field in delta_table.schema().fields}
    if name in TABLES:
        own = OWN_TABLES.get(name)
        columns = [
            Column(
                column,
                type_,
                COLUMNS.get(column, UNKNOWN_COLUMN_DESCRIPTION),
                own is not None and column in own.unique,
                own is not None and column in own.never_null,
            )
            for column, type_ in types.items()
        ]
        return Table(name, TABLES[name], version, columns)
    is_exact = not is_space_table(name)
    space_table = name.removeprefix(exact_table("")) if is_exact else name
    fields = descriptions.get(space_table, {})
    columns = [
        Column(
            column,
            type_,
            VERSION_COLUMNS.get(column) or fields.get(column) or "Field that no present format has.",
            column == "_key",
            column in NEVER_NULL_IN_SPACES,
        )
        for column, type_ in types.items()
    ]
    what = (
        "The whole rows of the masked space" if is_exact else "The winning version of each key of the space"
    )
    return Table(name, f"{what} {unescape(space_table)}, over all replicasets.", version, columns)


def sql_type(type_: Any) -> str:
    """Return Spark's SQL name of a column's type, which is given as in the decoded JSON of a Delta schema."""
    if isinstance(type_, str):
        return {"long": "bigint", "integer": "int"}.get(type_, type_)
    if type_["type"] == "array":
        return f"array<{sql_type(type_['elementType'])}>"
    if type_["type"] == "map":
        return f"map<{sql_type(type_['keyType'])}, {sql_type(type_['valueType'])}>"
    fields = ", ".join(f"{field['name']}: {sql_type(field['type'])}" for field in type_["fields"])
    return f"struct<{fields}>"
