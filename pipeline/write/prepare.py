"""Prepares the tables of spaces, masked and exact ones, before a batch writes them: creates tables, adds columns."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql.types import StructType

from pipeline.encode.columns import TableEncoding
from pipeline.encode.masks import MASKS_PROPERTY, TUPLE_COLUMN
from pipeline.write.rewrite import write_rows
from pipeline.write.table_change import (
    TableChange,
    change_needed,
    create,
    same_columns,
    table_schema,
)
from pipeline.write.tables import TableChanges, TableWrite, write_all_masked, write_exact
from schemas.layout import MISFITS_COLUMN
from warehouse.commits import OpenTables
from warehouse.data_files import opened

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """The result of preparing tables, and what the batch still has to do.

    Parameters
    ----------
    changes : dict of str to TableChange
        By exact table: `NOTHING`, or `REWRITE` for the batch to do.
    masked : set of str
        Masked tables that the batch rewrites after their exact ones.
    changed : set of str
        Tables that existed before and got a commit.

    """

    changes: dict[str, TableChange] = field(default_factory=dict)
    masked: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)


def prepare_tables(tables: OpenTables, encodings: Iterable[TableEncoding]) -> Prepared:
    """Create missing tables, add columns, and return the tables that must be rewritten."""
    found = Prepared()
    for encoding in encodings:
        prepare_table(tables, encoding, found)
    return found


def prepare_table(tables: OpenTables, encoding: TableEncoding, found: Prepared) -> None:
    """Prepare the tables of one space, and add them to `found`."""
    _prepare_exact(tables, encoding, found)
    if encoding.mask is not None:
        _prepare_masked(tables, encoding, found)


def _prepare_exact(tables: OpenTables, encoding: TableEncoding, found: Prepared) -> None:
    table, wanted = encoding.exact, table_schema(encoding)
    if encoding.mask is not None and _has_tuples(tables, encoding.name):
        _copy(tables, encoding)
        found.changed.add(table)
    change = change_needed(tables, encoding)
    if change is TableChange.CREATE:
        create(tables, table, wanted, f"space {encoding.layout.space}")
        change = TableChange.NOTHING
    elif change is TableChange.ADD:
        tables.add_columns(table, wanted)
        found.changed.add(table)
        change = TableChange.NOTHING
    elif change is TableChange.REWRITE:
        log.warning("%s is rewritten: its space has a new format", table)
    found.changes[table] = change


def _has_tuples(tables: OpenTables, table: str) -> bool:
    return tables.place.has(table) and TUPLE_COLUMN in tables.columns(table).names


def _copy(tables: OpenTables, encoding: TableEncoding) -> None:
    """Copy a table that was not masked before to the new exact table."""
    table = encoding.exact
    if not tables.place.has(table):
        create(tables, table, tables.columns(encoding.name), f"space {encoding.layout.space}")
    added = []
    for file in tables.files(encoding.name):
        with opened(tables.place, encoding.name, file.path) as parquet:
            added += write_rows(tables.place, table, parquet.read())
    # An unfinished batch may have left rows in the exact table.
    tables.commit(table, added, [(file, True) for file in tables.files(table)])


def _prepare_masked(tables: OpenTables, encoding: TableEncoding, found: Prepared) -> None:
    mask, table = encoding.mask, encoding.name
    if mask is None:
        return
    wanted, text = mask.schema(encoding.layout), mask.property_value()
    change = _masked_change(tables, encoding, found.changes.get(encoding.exact))
    if change is TableChange.CREATE:
        create(tables, table, wanted, f"space {encoding.layout.space}, masked")
        tables.set_properties(table, {MASKS_PROPERTY: text})
    elif change is TableChange.REWRITE:
        log.warning(
            "%s is rewritten: other fields of it are masked, or they are masked in another way", table
        )
        found.masked.add(table)
    elif tables.add_columns(table, wanted):
        found.changed.add(table)


def _masked_change(tables: OpenTables, encoding: TableEncoding, exact: TableChange | None) -> TableChange:
    if not tables.place.has(encoding.name):
        return TableChange.CREATE
    if masks_differ(tables, encoding) or exact is TableChange.REWRITE:
        return TableChange.REWRITE
    return TableChange.NOTHING


def changes_needed(tables: OpenTables, encoding: TableEncoding) -> dict[str, TableChange]:
    """Return what `prepare_table` would do to each table of a space; writes nothing."""
    exact = change_needed(tables, encoding)
    if encoding.mask is None:
        return {encoding.exact: exact}
    return {encoding.exact: exact, encoding.name: _masked_change(tables, encoding, exact)}


def masks_differ(tables: OpenTables, encoding: TableEncoding) -> bool:
    """Return whether a masked table has other columns than its mask requires, or was written with another mask.

    A missing `_misfits` does not count: a table of an earlier release lacks it, and all of its rows fit.
    """
    mask, table = encoding.mask, encoding.name
    if mask is None:
        return False
    present, wanted = (
        StructType([field for field in columns if field.name != MISFITS_COLUMN])
        for columns in (tables.columns(table), mask.schema(encoding.layout))
    )
    known = tables.open(table).metadata().configuration.get(MASKS_PROPERTY)
    return not same_columns(present, wanted.fields) or known != mask.property_value()


def rewrite_exact(tables: OpenTables, encoding: TableEncoding) -> int:
    """Write the table with the exact tuples again, with the columns that they have now, and return its version."""
    changes = TableChanges(encoding, None, {}, None, TableChange.REWRITE)
    return commit_write(tables, write_exact(tables.place, changes, tables.files(encoding.exact)))


def commit_write(tables: OpenTables, write: TableWrite) -> int:
    """Commit the files of a table, and return its version."""
    if write.schema is not None:
        return tables.replace(write.table, write.added, write.schema)
    return tables.commit(write.table, write.added, [(file, True) for file in write.removed])


def rewrite_masked(tables: OpenTables, encoding: TableEncoding) -> int:
    """Write the table that readers see of a masked space again, and return its version."""
    mask, table = encoding.mask, encoding.name
    if mask is None:
        return tables.version(table)
    added = write_all_masked(tables.place, encoding, tables.files(encoding.exact))
    tables.replace(table, added, mask.schema(encoding.layout))
    return tables.set_properties(table, {MASKS_PROPERTY: mask.property_value()})
