"""Prepares the tables of spaces, masked and exact ones, before a batch writes them: creates tables, adds columns.

If columns change, all rows of a table are encoded again from their exact tuples: values in `_extra` move to their
column, and no reader needs column mapping. A table that only gains columns, and has nothing in `_extra`, gains them
by a change of metadata.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pyspark.sql.types import DataType, StructField, StructType

from pipeline.encode.columns import TableEncoding
from pipeline.plan.spaces.masks import MASKS_PROPERTY, TUPLE_COLUMN
from pipeline.write.changes import (
    TableChange,
    TableChanges,
    TableWrite,
    table_schema,
    write_all_masked,
    write_exact,
    write_rows,
)
from schemas.errors import WarehouseError
from schemas.layout import EXTRA_COLUMN, MISFITS_COLUMN
from warehouse.delta import write
from warehouse.delta.commits import OpenTables
from warehouse.delta.table_files import TableFile, open_footer, read_file
from warehouse.delta.users_columns import remember_users_columns, users_columns

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedTables:
    """What was done to prepare tables, and what the batch still has to do."""

    changes: dict[str, TableChange] = field(default_factory=dict)
    """By exact table: `NOTHING`, or `REWRITE`, which the batch still has to do."""
    masked_to_rewrite: set[str] = field(default_factory=set)
    """Masked tables that the batch rewrites after their exact ones."""
    committed: set[str] = field(default_factory=set)
    """Tables that existed before and got a commit by the preparation."""


def prepare_tables(tables: OpenTables, encodings: Iterable[TableEncoding]) -> PreparedTables:
    """Create missing tables, add columns, and return what the batch still has to do."""
    prepared = PreparedTables()
    for encoding in encodings:
        prepare_table(tables, encoding, prepared)
    return prepared


def prepare_table(tables: OpenTables, encoding: TableEncoding, prepared: PreparedTables) -> None:
    """Prepare the tables of one space, and add them to `prepared`."""
    _prepare_exact(tables, encoding, prepared)
    if encoding.mask is not None:
        _prepare_masked(tables, encoding, prepared)


def _prepare_exact(tables: OpenTables, encoding: TableEncoding, prepared: PreparedTables) -> None:
    table, wanted = encoding.exact_table, table_schema(encoding)
    if encoding.mask is not None and _has_tuple_column(tables, encoding.name):
        _copy_to_exact(tables, encoding)
        prepared.committed.add(table)
    _remember_users_columns(tables, table, wanted.names, prepared)
    change = exact_change_needed(tables, encoding)
    if change is TableChange.CREATE:
        create_empty_table(tables, table, wanted, f"space {encoding.layout.space}")
        change = TableChange.NOTHING
    elif change is TableChange.ADD:
        tables.add_columns(table, wanted)
        prepared.committed.add(table)
        change = TableChange.NOTHING
    elif change is TableChange.REWRITE:
        log.warning("%s is rewritten: its space has a new format", table)
    prepared.changes[table] = change


def _has_tuple_column(tables: OpenTables, table: str) -> bool:
    return tables.has(table) and TUPLE_COLUMN in tables.columns(table).names


def _copy_to_exact(tables: OpenTables, encoding: TableEncoding) -> None:
    """Copy the rows of a space's table, which was not masked so far, to a new exact table."""
    table = encoding.exact_table
    if not tables.has(table):
        create_empty_table(tables, table, tables.columns(encoding.name), f"space {encoding.layout.space}")
    added = []
    for file in tables.files(encoding.name):
        rows = read_file(tables.location, encoding.name, file)
        added += write_rows(tables.location, table, rows, cluster_by=encoding.cluster_by)
    # An unfinished batch may have left rows in the exact table.
    tables.commit(table, added, [(file, True) for file in tables.files(table)])


def _prepare_masked(tables: OpenTables, encoding: TableEncoding, prepared: PreparedTables) -> None:
    mask, table = encoding.mask, encoding.name
    if mask is None:
        return
    wanted, text = mask.schema(encoding.layout), mask.property_value()
    _remember_users_columns(tables, table, wanted.names, prepared)
    change = _masked_change(tables, encoding, prepared.changes.get(encoding.exact_table))
    if change is TableChange.CREATE:
        create_empty_table(tables, table, wanted, f"space {encoding.layout.space}, masked")
        tables.set_properties(table, {MASKS_PROPERTY: text})
    elif change is TableChange.REWRITE:
        log.warning(
            "%s is rewritten: other fields of it are masked, or they are masked in another way", table
        )
        prepared.masked_to_rewrite.add(table)
    elif tables.add_columns(table, wanted):
        prepared.committed.add(table)


def _masked_change(tables: OpenTables, encoding: TableEncoding, exact: TableChange | None) -> TableChange:
    if not tables.has(encoding.name):
        return TableChange.CREATE
    if masks_differ(tables, encoding) or exact is TableChange.REWRITE:
        return TableChange.REWRITE
    return TableChange.NOTHING


def exact_change_needed(tables: OpenTables, encoding: TableEncoding) -> TableChange:
    """Return the change that the exact table of a space needs before a batch can write it."""
    table, wanted = encoding.exact_table, table_schema(encoding)
    if not tables.has(table):
        return TableChange.CREATE
    asked = {field.name: field.dataType for field in wanted}
    present = _own_columns(tables, table, asked)
    if encoding.has_moved_fields:
        return TableChange.REWRITE
    if present == asked and not encoding.has_added_fields:
        return TableChange.NOTHING
    new = {name for name in asked if name not in present}
    lasting = {name: kind for name, kind in asked.items() if name not in new}
    fills_columns = bool(new) or encoding.has_added_fields
    if present != lasting or (
        fills_columns and any(_has_extra_values(tables, table, file) for file in tables.files(table))
    ):
        return TableChange.REWRITE
    return TableChange.ADD if new else TableChange.NOTHING


def _own_columns(tables: OpenTables, table: str, wanted: Collection[str]) -> dict[str, DataType]:
    """Return the columns of a table without those that others have added; `wanted` are none of theirs."""
    present = {field.name: field.dataType for field in tables.columns(table)}
    theirs = users_columns(tables, table, present.keys() - set(wanted))
    return {name: kind for name, kind in present.items() if name not in theirs}


def _remember_users_columns(
    tables: OpenTables, table: str, wanted: Collection[str], prepared: PreparedTables
) -> None:
    """Record the columns that others have added to a table, so that they stay when it is written again."""
    if tables.has(table):
        theirs = users_columns(tables, table, set(tables.columns(table).names) - set(wanted))
        if theirs and remember_users_columns(tables, table, theirs):
            prepared.committed.add(table)


def _has_extra_values(tables: OpenTables, table: str, file: TableFile) -> bool:
    """Return whether a file may have a value in `_extra`, according to the statistics in its footer."""
    footer = open_footer(tables.location, table, file)
    for number in range(footer.num_columns):
        if footer.schema.column(number).path.partition(".")[0] != EXTRA_COLUMN:
            continue
        for group in range(footer.num_row_groups):
            statistics = footer.row_group(group).column(number).statistics
            if statistics is None or statistics.null_count < footer.row_group(group).num_rows:
                return True
    return False


def changes_needed(tables: OpenTables, encoding: TableEncoding) -> dict[str, TableChange]:
    """Return the change that each table of a space needs, by table; writes nothing."""
    exact = exact_change_needed(tables, encoding)
    if encoding.mask is None:
        return {encoding.exact_table: exact}
    return {encoding.exact_table: exact, encoding.name: _masked_change(tables, encoding, exact)}


def masks_differ(tables: OpenTables, encoding: TableEncoding) -> bool:
    """Return whether a masked table has other columns than its mask requires, or was written with another mask.

    A missing column `_misfits` does not count: a table of an earlier release lacks it, and all of its rows fit.
    """
    mask, table = encoding.mask, encoding.name
    if mask is None:
        return False
    schema = mask.schema(encoding.layout)
    present = _own_columns(tables, table, schema.names)
    wanted = {field.name: field.dataType for field in schema}
    for columns in (present, wanted):
        columns.pop(MISFITS_COLUMN, None)
    known = tables.open(table).metadata().configuration.get(MASKS_PROPERTY)
    return present != wanted or known != mask.property_value()


def rewrite_exact(tables: OpenTables, encoding: TableEncoding) -> int:
    """Rewrite the exact table with the columns of the current encoding, and return its version."""
    changes = TableChanges(encoding, None, {}, None, TableChange.REWRITE)
    return commit_table_write(
        tables, write_exact(tables.location, changes, tables.files(encoding.exact_table))
    )


def commit_table_write(tables: OpenTables, write: TableWrite) -> int:
    """Commit the added and removed files of a table, and return the table's new version."""
    if write.schema is not None:
        return tables.replace(write.table, write.added, write.schema)
    return tables.commit(write.table, write.added, [(file, True) for file in write.removed], write.deleted)


def rewrite_masked(tables: OpenTables, encoding: TableEncoding) -> int:
    """Rewrite the masked table of a space from its exact table, and return its version."""
    mask, table = encoding.mask, encoding.name
    if mask is None:
        return tables.version(table)
    added = write_all_masked(tables.location, encoding, tables.files(encoding.exact_table))
    tables.replace(table, added, mask.schema(encoding.layout))
    return tables.set_properties(table, {MASKS_PROPERTY: mask.property_value()})


def create_empty_table(tables: OpenTables, table: str, schema: StructType, comment: str) -> None:
    """Create an empty table.

    Raises:
        WarehouseError: The table already exists with other columns: a writer without the lock has created it meanwhile.
    """
    write.create(tables.location, table, schema, comment)
    if not same_columns(tables.columns(table), schema.fields):
        raise WarehouseError("the table was created with other columns meanwhile", table=table)


def same_columns(one: StructType, other: Sequence[StructField]) -> bool:
    """Return whether two schemas have the same columns; order, comments and nullability do not count."""
    return {f.name: f.dataType for f in one} == {f.name: f.dataType for f in other}
