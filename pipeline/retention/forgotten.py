"""Removes the rows of forgotten keys from the tables, in one epoch.

Rows of `_pending` keep their places, as NOPs: a row that is missing would hold all later ones. If the process ends
before the epoch, the next start rolls the tables back, and the command removes the rows again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.commit.epoch import commit_epoch
from pipeline.retention.removal import Removal, read_columns, remove_rows
from pipeline.state import State
from pipeline.write.system_rows import write_system_rows
from schemas.names import exact_table
from warehouse.delta.commits import OpenTables
from warehouse.delta.newest_epoch import NEVER_ROLLED_BACK
from warehouse.delta.table_files import TableFile, read_file

Mark = Callable[[str, pa.Table], pa.BooleanArray]
"""Gets the columns `COLUMNS` of a table, and returns for each row whether it is forgotten."""

COLUMNS: Mapping[str, Sequence[str]] = {
    "_changelog": ("epoch", "replicaset_id", "space", "space_id", "type", "key", "tuple", "body"),
    "_versions": ("space", "key", "tuple"),
    "_conflicts": ("space", "key", "winner_tuple", "loser_tuple"),
    "_quarantine": ("space", "key", "tuple"),
    "_pending": ("replicaset_id", "space_id", "type", "key", "tuple", "body"),
    "_requests": ("arguments", "message"),
    "_validations": ("examples", "error"),
}
"""The tables of the aggregator that may have rows of a key, and the columns that show it."""

SPACE_COLUMNS = ("_key",)
"""The columns that show it in the tables of a space."""

_FORGOTTEN_COLUMNS = ("space_id", "index_base", "key", "tuple", "operations", "body")


@dataclass(frozen=True)
class Marked:
    """The rows of forgotten keys: of each table the files that have some, with a mask that is true for them."""

    files: Mapping[str, Sequence[tuple[TableFile, pa.BooleanArray]]]
    """A file is here, too, if it has such rows only among those that its deletion vector hides."""

    def counts(self) -> dict[str, int]:
        """Return the number of visible rows of each table that must be written again."""
        return {t: sum(gone.true_count for _, gone in files) for t, files in self.files.items() if files}


def tables_with_keys(tables: OpenTables, space_tables: Iterable[str]) -> dict[str, Sequence[str]]:
    """Return the tables that may have rows of a space's keys, with the columns that show it."""
    of_space = [name for table in sorted(space_tables) for name in (table, exact_table(table))]
    wanted = {**dict.fromkeys(of_space, SPACE_COLUMNS), **COLUMNS}
    return {table: columns for table, columns in wanted.items() if tables.has(table)}


def mark_rows(tables: OpenTables, space_tables: Iterable[str], mark: Mark) -> Marked:
    """Return the rows of forgotten keys in all tables; writes nothing."""
    found = {}
    for table, columns in tables_with_keys(tables, space_tables).items():
        found[table] = [
            (file, gone)
            for file in tables.files(table)
            for gone in [mark(table, read_columns(tables, table, file, columns))]
            if gone.true_count or _hides(tables, table, file, columns, mark)
        ]
    return Marked(found)


def _hides(tables: OpenTables, table: str, file: TableFile, columns: Sequence[str], mark: Mark) -> bool:
    """Return whether a file has rows of the keys that its deletion vector hides."""
    if file.vector is None:
        return False
    stored = read_columns(tables, table, replace(file, vector=None), columns)
    return bool(mark(table, stored).true_count)


def remove_marked(
    tables: OpenTables, state: State, marked: Marked, done: Callable[[str], None] = lambda _: None
) -> State:
    """Remove the rows from all tables, commit an epoch, and return the state after it.

    Args:
        done: Called after the commit to each table.
    """
    versions = {}
    for table in marked.counts():
        files = marked.files[table]
        is_pending = table == "_pending"
        version = _as_nops(tables, files) if is_pending else remove_rows(tables, Removal(table, files))
        if table not in NEVER_ROLLED_BACK:
            versions[table] = version
        done(table)
    return commit_epoch(tables, state, versions, ("forget", state.epoch + 1)) if versions else state


def _as_nops(tables: OpenTables, files: Sequence[tuple[TableFile, pa.BooleanArray]]) -> int:
    added = []
    for file, gone in files:
        rows = read_file(tables.location, "_pending", file)
        for name in ("type", *_FORGOTTEN_COLUMNS):
            index = rows.schema.get_field_index(name)
            value = pa.scalar("NOP" if name == "type" else None, rows.schema.field(name).type)
            rows = rows.set_column(index, rows.schema.field(name), pc.if_else(gone, value, rows[name]))
        added.append(write_system_rows(tables.location, "_pending", rows, is_new_data=False))
    return tables.commit("_pending", added, [(file, True) for file, _ in files])
