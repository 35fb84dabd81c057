"""Builds a second table of a space under another configuration while the stream runs, and swaps the two in one epoch.

The second table is in a database of its own, `<database>__beside.db`, under the same name. It is built from the tables
of an epoch, without the writer lock: each row is a function of the versions of its key, which are all stored. One of
its properties has the versions of these tables up to which it has come: it is brought further by the keys that differ
since then. The holder of the lock brings it to the last epoch and swaps it in: a pause for these keys, not for all.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructType

from config.deployment import Config
from pipeline.commit.epoch import commit_epoch
from pipeline.encode.columns import TableEncoding, encoding_of
from pipeline.lookup.key_search import SPACE_TABLE, KeySearch, LookupKeys
from pipeline.plan.spaces.masks import MASKS_PROPERTY
from pipeline.plan.spaces.tables import TablePlan, current_table_plan
from pipeline.requests.arguments import SwapArguments
from pipeline.requests.rebuild import (
    Rebuild,
    new_rows,
    plan_rebuild,
    removed_rows,
    table_to_rebuild,
    with_unfit_versions,
    write_other_versions,
)
from pipeline.state import State
from pipeline.write.changes import (
    reencode_rows,
    remaining_rows,
    rows_with_keys,
    table_schema,
    write_changes,
    write_rows,
)
from pipeline.write.limits import FILE_BYTES
from pipeline.write.prepare import commit_table_write, create_empty_table
from pipeline.write.vector_rule import VectorRule
from schemas.errors import UnsupportedError, WarehouseError
from schemas.names import exact_table, is_space_table, table_of_exact_tuples
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import DataFile
from warehouse.delta.deletion_vectors import NO_ROWS
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.second_table import copy_files, take_files
from warehouse.delta.table_files import read_file
from warehouse.warehouse import VersionedTables

MARK_PROPERTY = "aggregator.beside"
"""The property of a second table that says from what it was built: `Mark`."""

SUFFIX = "__beside"
"""What the name of a database has at its end if its tables are the second ones of another one."""


def beside_location(location: WarehouseLocation) -> WarehouseLocation:
    """Return the database of the second tables of a database."""
    return location_of(f"{location.root.removesuffix('.db')}{SUFFIX}.db")


@dataclass(frozen=True)
class Mark:
    """From what a second table was built."""

    epoch: int
    versions: Mapping[str, int]
    settings: str
    """What the configuration says of the table (`settings_of`)."""


def settings_of(plan: TablePlan) -> str:
    """Return all that the configuration and the spaces' definitions say of a table, as text."""
    encoding, layout = encoding_of(plan), plan.layout
    formats = [[(field.name, field.type) for field in one] for one in layout.formats]
    mask = None if plan.mask is None else plan.mask.property_value()
    found: list[object] = [
        table_schema(encoding).json(),
        formats,
        sorted(plan.format_indices.items()),
        repr(layout.options),
    ]
    found += [mask, plan.quarantines_misfits, sorted(layout.binary_fields), list(plan.priority)]
    found += [list(plan.cluster_by)]
    return json.dumps([*found, plan.policy.model_dump(mode="json")])


@dataclass(frozen=True)
class BesideTable:
    """The second table of a space, of one epoch and one configuration."""

    source: OpenTables
    """The tables as the epoch names them."""
    state: State
    config: Config
    plan: TablePlan

    @classmethod
    def of(cls, source: OpenTables, state: State, config: Config, space: str) -> BesideTable:
        """Return the table of a space; raise UnsupportedError if it cannot be built."""
        plan = table_to_rebuild(state, config, space, config.policies.of(space))
        return cls(source, state, config, plan)

    @cached_property
    def tables(self) -> OpenTables:
        """The second tables."""
        return OpenTables(beside_location(self.source.location))

    @cached_property
    def encoding(self) -> TableEncoding:
        """How tuples are converted to its rows."""
        return encoding_of(self.plan)

    @property
    def stored(self) -> str:
        """The table that has the exact rows now."""
        return table_of_exact_tuples(self.state.versions, self.plan.name)

    def schemas(self) -> dict[str, StructType]:
        """Return the columns of the exact table, and of readers' if that is another one."""
        found = {self.encoding.exact_table: table_schema(self.encoding)}
        if self.encoding.mask is not None:
            found[self.encoding.name] = self.encoding.mask.schema(self.encoding.layout)
        return found

    def shown(self, name: str, rows: pa.Table) -> pa.Table:
        """Return rows of the exact table as the table of a name has them."""
        mask = self.encoding.mask
        return rows if mask is None or name == self.encoding.exact_table else mask.masked(rows)

    def mark(self) -> Mark | None:
        """Return from what the table was built; None if there is none, or its building was stopped."""
        found = [self._mark_of(name) for name in self.schemas()]
        known = [one for one in found if one is not None]
        if len(known) < len(found) or len({one.settings for one in known}) > 1:
            return None
        return min(known, key=lambda one: one.epoch)

    def _mark_of(self, name: str) -> Mark | None:
        if not self.tables.has(name):
            return None
        text = self.tables.open(name).metadata().configuration.get(MARK_PROPERTY)
        return None if text is None else Mark(**json.loads(text))

    def bring_up(self, log_step: Callable[[str], None] = lambda _text: None) -> None:
        """Bring the table to the epoch: by the keys that differ since its own, or from the start if that is not known.

        Args:
            log_step: Called with what is done next.
        """
        mark, keys = self.mark(), None
        if mark is not None and self._is_of_these_settings(mark):
            if mark.versions == self._versions():
                return
            with contextlib.suppress(DeltaError, FileNotFoundError, WarehouseError):
                log_step("looking for keys that differ")
                keys = self._changed_keys(mark)
        if keys is None:
            self._build(log_step)
        else:
            log_step(f"writing {len(keys)} keys that differ")
            self._catch_up(keys)

    def require_built(self) -> None:
        """Raise UnsupportedError if the table is not built, or was built under another configuration."""
        if self._is_of_these_settings(self.mark()):
            return
        what = "no table is built beside"
        if self._mark_of(self.plan.name) is not None:
            what = (
                "the table beside was built under another configuration, or another definition of the space"
            )
        name = self.plan.layout.space
        raise UnsupportedError(what, space=name, advice=f"aggregator rebuild {name} --beside")

    def _is_of_these_settings(self, mark: Mark | None) -> bool:
        return (
            mark is not None
            and mark.settings == settings_of(self.plan)
            and mark.versions.keys() == self._named()
        )

    def _named(self) -> set[str]:
        return {self.stored, self.plan.name, "_versions"}

    def _versions(self) -> dict[str, int]:
        return {name: self.source.version(name) for name in self._named()}

    def _build(self, log_step: Callable[[str], None]) -> None:
        discard(self.source.location, self.plan.name)
        self.tables.forget()
        policy = self.plan.policy
        log_step("choosing between the versions of contended keys")
        rebuild = plan_rebuild(self.source, self.state, self.config, self.plan.layout.space, policy)
        schemas = self.schemas()
        for name, schema in schemas.items():
            create_empty_table(self.tables, name, schema, f"space {self.plan.layout.space}, built beside")
        added: dict[str, list[DataFile]] = {name: [] for name in schemas}
        for rows in self._whole_parts(rebuild, log_step):
            for name in schemas:
                added[name] += write_rows(
                    *(self.tables.location, name, self.shown(name, rows)), cluster_by=self.plan.cluster_by
                )
        for name, schema in schemas.items():
            self.tables.replace(name, added[name], schema)
        self._set_mark()

    def _whole_parts(self, rebuild: Rebuild, log_step: Callable[[str], None]) -> Iterator[pa.Table]:
        """Yield the rows of the table, each time about as many as a file has."""
        files, gone = self.source.files(self.stored), removed_rows(rebuild.results)
        parts, size = new_rows(rebuild.results), 0
        for number, file in enumerate(files, start=1):
            rows = remaining_rows(self.source.location, self.stored, file, gone.get(file, NO_ROWS))
            if rows.num_rows:
                parts.append(reencode_rows(rows, self.encoding))
                size += parts[-1].nbytes
            if size > FILE_BYTES // 2:
                log_step(f"file {number} of {len(files)}")
                yield pa.concat_tables(parts, promote_options="default")
                parts, size = [], 0
        if parts:
            yield pa.concat_tables(parts, promote_options="default")

    def _changed_keys(self, mark: Mark) -> pa.Array:
        """Return the keys whose rows or versions differ from those of the mark."""
        before = VersionedTables(self.source.location, versions=mark.versions)
        rows = self._rows_that_differ(before, self.stored, SPACE_TABLE.names)["_key"]
        versions = self._rows_that_differ(before, "_versions", ("key", "space", "replicaset_id", "epoch"))
        own = versions["key"].filter(pc.equal(versions["space"], self.plan.name))
        return pc.unique(pa.chunked_array([*rows.chunks, *own.chunks], pa.binary()))

    def _rows_that_differ(self, before: OpenTables, table: str, columns: Sequence[str]) -> pa.Table:
        """Return the rows that only one of two versions of a table has: files that differ may share most of theirs."""
        old, new = ({file.path: file for file in one.files(table)} for one in (before, self.source))
        parts = []
        for path in sorted(old.keys() | new.keys()):
            if old.get(path) != new.get(path):
                for file in (old.get(path), new.get(path)):
                    if file is not None:
                        parts.append(read_file(self.source.location, table, file, columns))
        if not parts:
            return pa.table({name: pa.array([], pa.binary()) for name in columns})
        whole = pa.concat_tables(parts, promote_options="default")
        counted = whole.group_by(list(columns)).aggregate([([], "count_all")])
        return counted.filter(pc.equal(pc.bit_wise_and(counted["count_all"], 1), 1))

    def _catch_up(self, keys: pa.Array) -> None:
        space, policy = self.plan.layout.space, self.plan.policy
        if len(keys):
            rebuild = plan_rebuild(self.source, self.state, self.config, space, policy, keys)
            parts = [*self._rows_of_keys(keys, rebuild), *new_rows(rebuild.results)]
            rows = pa.concat_tables(parts, promote_options="default") if parts else None
            for name in self.schemas():
                self._write_keys(name, keys, None if rows is None else self.shown(name, rows))
        self._set_mark()

    def _rows_of_keys(self, keys: pa.Array, rebuild: Rebuild) -> Iterator[pa.Table]:
        location, search, wanted = self.source.location, KeySearch(), LookupKeys.of(keys)
        gone = removed_rows(rebuild.results)
        for file in self.source.files(self.stored):
            for found in search.find(location, self.stored, file, wanted, SPACE_TABLE.names):
                kept = pa.array(~np.isin(found.numbers, gone.get(file, NO_ROWS)))
                rows = pa.table(found.rows).filter(kept)
                if rows.num_rows:
                    yield reencode_rows(rows, self.encoding)

    def _write_keys(self, name: str, keys: pa.Array, rows: pa.Table | None) -> None:
        """Replace the rows of keys in a second table."""
        tables, config = self.tables, self.config
        gone = rows_with_keys(tables.location, name, tables.files(name), keys, KeySearch())
        mode = config.vector_mode(self.plan.layout.space)
        rule = VectorRule(mode, config.deletion_vectors_above, tables.allows_vectors(name))
        rows = None if rows is None or not rows.num_rows else rows
        order = self.plan.cluster_by
        commit_table_write(tables, write_changes(tables.location, name, rows, gone, rule, cluster_by=order))

    def _set_mark(self) -> None:
        mark = Mark(self.state.epoch, self._versions(), settings_of(self.plan))
        text = json.dumps({"epoch": mark.epoch, "versions": mark.versions, "settings": mark.settings})
        for name in self.schemas():
            self.tables.set_properties(name, {MARK_PROPERTY: text})

    def copy_files(self) -> None:
        """Copy the files, which no table has yet, to the folders of the tables that they are for."""
        for name in self.schemas():
            copy_files(self.tables.location, self.source.location, name, self.tables.log(name))


@dataclass(frozen=True)
class Swapped:
    """The result of a swap."""

    state: State
    changed_keys: int
    """The number of keys for which another version is chosen."""
    gone: tuple[str, ...]
    """A table that is not needed any more: the exact one of a space whose readers see all now."""


def swap(tables: OpenTables, state: State, config: Config, space: str, query_id: str) -> Swapped:
    """Put the second table in the place of a space's table, in one epoch.

    Raises:
        UnsupportedError: It is not built, or was built under another configuration.
    """
    beside = BesideTable.of(tables, state, config, space)
    beside.require_built()
    beside.bring_up()
    rebuild = plan_rebuild(tables, state, config, space, beside.plan.policy)
    beside.copy_files()
    versions = write_other_versions(tables, rebuild)
    for name, schema in beside.schemas().items():
        if not tables.has(name):
            create_empty_table(tables, name, schema, f"space {space}")
        mask, properties = beside.encoding.mask, {}
        if name == beside.plan.name:
            properties[MASKS_PROPERTY] = "{}" if mask is None else mask.property_value()
        versions[name] = take_files(tables, name, beside.tables.log(name), schema, properties)
    gone = {exact_table(beside.plan.name)} & state.versions.keys() - versions.keys()
    kept = {name: version for name, version in state.versions.items() if name not in gone}
    after = replace(with_unfit_versions(state, rebuild), versions=kept)
    after = commit_epoch(tables, after, versions, (query_id, 0))
    discard(tables.location, beside.plan.name)
    return Swapped(after, rebuild.changed_keys, tuple(gone))


def discard(location: WarehouseLocation, table: str) -> bool:
    """Remove the second table of a table; return whether there was anything."""
    beside = beside_location(location)
    found = [name for name in _both(table) if beside.has(name)]
    for name in _both(table):
        with contextlib.suppress(FileNotFoundError):
            beside.fs.delete_dir(beside.at(name))
    return bool(found)


def _both(table: str) -> Iterable[str]:
    return table, exact_table(table)


WHICH_TABLES = ("include", "exclude", "rename", "per_replicaset", "local")
"""The keys of `spaces` that say which tables there are: a swap does not change them."""


def with_sections(config: Config, sections: SwapArguments) -> Config:
    """Return the configuration that counts from a swap on: the writer's, with the sections of the command's."""
    found = {name: getattr(sections, name) for name in ("spaces", "types", "policies")}
    return config.model_copy(update=found)


def refuse_other_changes(state: State, before: Config, after: Config, space: str) -> None:
    """Raise UnsupportedError if a space's table is set aside, or the configuration changes other tables too."""
    table = after.spaces.table(space)
    if table in state.set_aside:
        raise UnsupportedError(
            f"its table is set aside: {state.set_aside[table]}",
            space=space,
            advice=f"aggregator rebuild {space}",
        )
    changed = [name for name in WHICH_TABLES if getattr(before.spaces, name) != getattr(after.spaces, name)]
    if changed:
        raise UnsupportedError(
            f"the configuration differs in spaces.{changed[0]} from that of the writer",
            space=space,
            advice="restart the job with it first",
        )
    tables = filter(is_space_table, state.versions.keys() - {table})
    others = sorted(one for one in tables if _settings(state, before, one) != _settings(state, after, one))
    if others:
        raise UnsupportedError(
            f"the configuration changes other tables too: {', '.join(others)}",
            space=space,
            advice="swap with one that changes this table alone, or restart the job, which writes all of them again",
        )


def _settings(state: State, config: Config, table: str) -> str:
    try:
        plan = current_table_plan(state, config, table)
    except UnsupportedError as error:
        return str(error)
    except KeyError as error:
        return f"there is no source {error}"
    return "" if plan is None else settings_of(plan)
