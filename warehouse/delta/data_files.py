"""Parquet files of a Delta table: tasks write them, the driver commits them (`warehouse.delta.commits`).

A file has the statistics by which readers of Delta skip it. The rows of a space's table are in the order of `_key`; a
file that maintenance has joined has several such runs, one after another. Delta's log has no statistics of binary
columns, so a lookup of a key uses the Parquet footer: it has the least and the greatest key of each row group. Not
here: reading files (`warehouse.delta.table_files`), and the log of a table.
"""

import json
import math
import time
import uuid as uuids
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction

from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile

ROW_GROUP_ROWS = 64 * 1024
"""Rows of a row group: a lookup of one key reads that many."""

INDEXED_COLUMNS = 32
"""The number of columns, from the first on, that have statistics (`delta.dataSkippingNumIndexedCols`)."""

LONGEST_TEXT_CHARACTERS = 32
"""The longest text in statistics, in characters; longer ones are truncated, as Delta does."""

LONGEST_FOOTER_BYTES = 4096
"""The longest value, in bytes, that Arrow writes as a bound into a Parquet footer."""

_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True)
class DataFile:
    """A written file of a table, perhaps not committed yet."""

    table: str
    path: str
    """Relative to the table's folder."""
    size: int
    """In bytes."""
    rows: int
    stats: str
    """The file's statistics as JSON, as in Delta's log."""
    is_new_data: bool = True
    """Delta's `dataChange`: False if the file only has rows that other files had before."""

    def as_table_file(self) -> TableFile:
        """Return the file as the table has it after the commit."""
        return TableFile(self.path, self.size, self.rows)


def write_file(
    location: WarehouseLocation,
    table: str,
    rows: pa.Table,
    *,
    dictionary: Sequence[str] = (),
    is_new_data: bool = True,
) -> DataFile:
    """Write rows as one new file of a table."""
    path = f"part-{uuids.uuid4()}.parquet"
    found: list[pq.FileMetaData] = []
    with location.fs.open_output_stream(location.at(table, path)) as stream:
        pq.write_table(
            rows,
            stream,
            row_group_size=ROW_GROUP_ROWS,
            compression="snappy",
            use_dictionary=list(dictionary),
            write_statistics=_columns_with_statistics(rows.schema, floating_columns_without_nan(rows)),
            metadata_collector=found,
        )
        size = stream.tell()
    stats = statistics(found[0], long_text_bounds(rows))
    return DataFile(table, path, size, rows.num_rows, stats, is_new_data)


class FileWriter:
    """A new file of a table that is written batch by batch.

    Args:
        without_nan: Float and double columns that have no NaN; the others get no statistics.
    """

    def __init__(
        self,
        location: WarehouseLocation,
        table: str,
        schema: pa.Schema,
        dictionary: Sequence[str] = (),
        without_nan: Collection[str] = (),
    ) -> None:
        self._table, self._path = table, f"part-{uuids.uuid4()}.parquet"
        self._stream = location.fs.open_output_stream(location.at(table, self._path))
        self._found: list[pq.FileMetaData] = []
        self._long_texts: dict[str, tuple[str, str]] = {}
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="snappy",
            use_dictionary=list(dictionary),
            write_statistics=_columns_with_statistics(schema, without_nan),
            metadata_collector=self._found,
        )
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        """Write rows as one row group."""
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self.rows += rows.num_rows
        for name, (low, high) in long_text_bounds(rows).items():
            least, greatest = self._long_texts.get(name, (low, high))
            self._long_texts[name] = (min(low, least), max(high, greatest))

    def close(self) -> DataFile:
        """Finish the file, and return it."""
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        stats = statistics(self._found[0], self._long_texts)
        return DataFile(self._table, self._path, size, self.rows, stats)


def statistics(metadata: pq.FileMetaData, long_texts: Mapping[str, tuple[str, str]]) -> str:
    """Return the statistics of a Parquet file as the JSON of Delta's log.

    Each column should have both bounds in every file. If one file has the bounds of a column and another file does not,
    a filter through delta-rs' Arrow dataset of the table finds no row of the file without the bounds.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    # As delta-rs counts: a variant, or another column with parts, is one column.
    indexed = list(dict.fromkeys(one.path.removesuffix(f".{one.name}") for one in columns))[:INDEXED_COLUMNS]
    for number, column in enumerate(columns):
        name = column.path
        if column.name != name or name not in indexed:
            continue
        parts = [metadata.row_group(i).column(number).statistics for i in range(metadata.num_row_groups)]
        if any(one is None for one in parts):
            continue
        nulls[name] = sum(one.null_count for one in parts)
        known = [(one.min, one.max) for one in parts if one.has_min_max]
        if len(known) < sum(one.num_values > 0 for one in parts):
            if name not in long_texts:
                continue
            known.append(long_texts[name])
        if not known:
            continue
        try:
            low = _bound(min(one for one, _ in known), column, is_least=True)
            high = _bound(max(one for _, one in known), column, is_least=False)
        except (OverflowError, ValueError):  # a time outside of Python's years 1 to 9999
            continue
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    whole = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(whole, ensure_ascii=False, allow_nan=False)


def long_text_bounds(rows: pa.Table) -> dict[str, tuple[str, str]]:
    """Return column to (least text, greatest text), for columns with a text that is too long for the footer."""
    found = {}
    for name in rows.column_names:
        column = rows[name]
        if (
            pa.types.is_string(column.type)
            and (pc.max(pc.binary_length(column)).as_py() or 0) > LONGEST_FOOTER_BYTES
        ):
            bounds = pc.min_max(column)
            found[name] = (bounds["min"].as_py(), bounds["max"].as_py())
    return found


def _columns_with_statistics(schema: pa.Schema, without_nan: Collection[str]) -> list[str]:
    """Return the columns that get statistics in the footer: of float and double columns only those `without_nan`."""
    found: list[str] = []
    for field in schema:
        if pa.types.is_struct(field.type):
            found.extend(f"{field.name}.{part.name}" for part in field.type)
        elif field.name in without_nan or not pa.types.is_floating(field.type):
            found.append(field.name)
    return found


def floating_columns_without_nan(rows: pa.Table) -> set[str]:
    """Return the float and double columns without a NaN.

    Statistics of the others would be wrong: Arrow leaves NaN out of the greatest value, but for Spark NaN is the
    greatest number, so Spark would skip a row group with NaN that it needs.
    """
    floating = [field.name for field in rows.schema if pa.types.is_floating(field.type)]
    return {name for name in floating if not pc.any(pc.is_nan(rows[name])).as_py()}


def _bound(value: Any, column: pq.ColumnSchema, *, is_least: bool) -> int | float | str | None:
    """Return a bound (least or greatest value) in the format of Delta's log; None if the log has no such bounds."""
    if isinstance(value, int | float):
        # JSON has no infinity; Spark writes this text, too.
        return value if math.isfinite(value) else str(value).replace("inf", "Infinity")
    if isinstance(value, Decimal):
        whole_number = math.floor(value) if is_least else math.ceil(value)
        return whole_number if abs(whole_number) < 10 ** (column.precision - column.scale) else None
    if isinstance(value, str):
        return _text_bound(value, is_least=is_least)
    if isinstance(value, datetime):
        whole = value.astimezone(UTC) + (timedelta(0) if is_least else timedelta(microseconds=999))
        return whole.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return None


def _text_bound(value: str, *, is_least: bool) -> str:
    """Return a text truncated to the maximum length of a bound.

    A truncated upper bound ends with the character that sorts last, so that the bound is not less than the text.
    """
    end = LONGEST_TEXT_CHARACTERS
    while not is_least and value[end : end + 1] == _LAST_CHARACTER:
        end += 1
    return value if len(value) <= end else value[:end] + ("" if is_least else _LAST_CHARACTER)


def append_to(
    opened: DeltaTable,
    location: WarehouseLocation,
    table: str,
    rows: pa.Table,
    properties: CommitProperties,
    *,
    replaces: bool = False,
) -> None:
    """Append rows with the table's schema as one file in one commit, which removes the other files if it `replaces`.

    delta-rs only commits: on a full disk `write_deltalake` prints the stack of a panic besides its error.
    """
    file = write_file(location, table, rows)
    action = AddAction(file.path, file.size, {}, now_millis(), data_change=True, stats=file.stats)
    mode: Literal["append", "overwrite"] = "overwrite" if replaces else "append"
    opened.create_write_transaction([action], mode, opened.schema(), commit_properties=properties)


def in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns and types of a schema; missing columns are null, and others are left out."""
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.schema.names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def now_millis() -> int:
    """Return the current time in milliseconds since 1970, as in Delta's log."""
    return int(time.time() * 1000)
