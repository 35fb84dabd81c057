"""Exact tuples → the columns of a space's table.

Pure. Typed columns are made here and only here. If a value does not fit its column, the row is in the table with a null
column that `_misfits` names, and `_quarantine` has the reason. Such a value is called a misfit. A tuple that cannot
be split into fields has no row in the table; if the configuration sets misfits aside, a tuple with a misfit has none
either. A tuple without a row goes to `_quarantine`, and remains a version with the state `unfit`, so that a later
UPDATE finds it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from config.deployment import Config
from pipeline.plan.spaces.masks import Mask
from pipeline.plan.spaces.tables import TablePlan, current_table_plan
from pipeline.state import State
from schemas.errors import UnsupportedError
from schemas.layout import (
    ERROR_COLUMN,
    EXTRA_COLUMN,
    INEXACT_COLUMN,
    MISFITS_COLUMN,
    VARIANT_ARROW,
    TableLayout,
)
from schemas.names import is_space_table
from udfs.buffers import as_array
from udfs.tuples.tuples import DecodingPlan, decode, decoding_plan

VARIANT_FILE = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
"""A variant as Delta's files have it (protocol of Delta, "Variant data type")."""

_PUT_COLUMNS = {
    "_key": "key",
    "_tuple": "tuple",
    "_global_id": "global_id",
    "_replicaset_id": "replicaset_id",
    "_lsn": "lsn",
    "_timestamp": "timestamp",
    "_created": "created",
}
"""For each column that all tables of spaces have, the column of `pipeline.resolve.resolve.PUTS`."""


@dataclass(frozen=True)
class TableEncoding:
    """How tuples are converted to rows of one table. Picklable."""

    name: str
    exact_table: str
    """The name of the table that readers see, and of the one with the exact tuples."""
    layout: TableLayout
    format_indices: Mapping[int, int]
    """For each replicaset id, the index of its format in the layout."""
    mask: Mask | None = None
    quarantines_misfits: bool = False
    has_moved_fields: bool = False
    has_added_fields: bool = False
    """As in `pipeline.plan.spaces.tables.TablePlan`."""
    cluster_by: tuple[str, ...] = ()
    """The columns in whose order rows are written, before that of the key."""

    @cached_property
    def decoding_plan(self) -> DecodingPlan:
        """The plan for decoding tuples."""
        return decoding_plan(self.layout)

    def format_indices_of(self, replicasets: NDArray[np.int32]) -> pa.Array:
        """Return the index of each tuple's format, by its replicaset id (negative for a tuple that a policy made)."""
        size = max(self.format_indices, default=0) + 1
        known = np.full(size + 1, -1, np.int32)
        for replicaset_id, index in self.format_indices.items():
            known[replicaset_id] = index
        found = known[np.minimum(np.abs(replicasets), size)]
        return pa.array(found, mask=found < 0)


def encoding_of(table: TablePlan) -> TableEncoding:
    """Return the encoding of a planned table."""
    return TableEncoding(
        *(table.name, table.exact_table, table.layout, table.format_indices, table.mask),
        quarantines_misfits=table.quarantines_misfits,
        has_moved_fields=table.has_moved_fields,
        has_added_fields=table.has_added_fields,
        cluster_by=table.cluster_by,
    )


def current_encodings(state: State, config: Config) -> Iterator[TableEncoding]:
    """Yield the encodings of all tables of spaces by their current definitions, without those that are refused."""
    for table in filter(is_space_table, state.versions):
        with suppress(UnsupportedError):
            plan = current_table_plan(state, config, table)
            if plan is not None:
                yield encoding_of(plan)


def cluster_orders(encodings: Iterable[TableEncoding]) -> dict[str, tuple[str, ...]]:
    """Return the `cluster_by` of the tables that have one, by table: of the exact ones, and of those of readers."""
    return {
        name: one.cluster_by for one in encodings if one.cluster_by for name in (one.exact_table, one.name)
    }


@dataclass(frozen=True)
class Encoded:
    """Encoded rows of a table."""

    rows: pa.Table
    """Rows of the exact table, as in its files. `_extra`, `_inexact` and `_misfits` are left out if they are null in
    all rows."""
    misfits: pa.Table
    """The rows of `PUTS` that have a value that does not fit its column, with two more columns: `reason`, and
    `misfits`, the names of the columns that are null in `rows` for this reason. The column `misfits` is null for a
    tuple that `rows` leaves out."""

    @property
    def left_out_rows(self) -> pa.Table:
        """The rows of `misfits` whose tuples `rows` leaves out."""
        return self.misfits.filter(pc.is_null(self.misfits["misfits"]))


def encode(puts: pa.Table, encoding: TableEncoding) -> Encoded:
    """Encode new rows of one table."""
    puts = puts.combine_chunks()
    formats = encoding.format_indices_of(puts["replicaset_id"].to_numpy())
    typed = decode(as_array(puts["tuple"]), encoding.decoding_plan, formats)
    error = typed.field(ERROR_COLUMN)
    named = typed.field(MISFITS_COLUMN)
    if encoding.quarantines_misfits:
        named = pa.nulls(len(named), named.type)
    misfits = puts.append_column("reason", error).append_column("misfits", named)
    if error.null_count == len(error):
        misfits = misfits.slice(0, 0)
    else:
        misfits = misfits.filter(pc.is_valid(error))
        has_row = pc.or_(pc.is_null(error), pc.is_valid(named))
        puts, typed = puts.filter(has_row).combine_chunks(), typed.filter(has_row)
    columns = {}
    for field in encoding.layout.arrow_fields()[:-1]:
        column = typed.field(field.name)
        if field.name in _OPTIONAL_COLUMNS and column.null_count == len(column):
            continue
        columns[field.name] = column_for_file(column)
    columns |= {name: puts[source] for name, source in _PUT_COLUMNS.items()}
    return Encoded(pa.table(columns), misfits)


_OPTIONAL_COLUMNS = (EXTRA_COLUMN, INEXACT_COLUMN, MISFITS_COLUMN)
"""Columns that are left out of a file if they have only nulls."""


def column_for_file(column: pa.Array) -> pa.Array:
    """Return a typed column as Delta's files store it: only variants differ."""
    return variants_for_file(column) if column.type == VARIANT_ARROW else column


def variants_for_file(column: pa.Array) -> pa.Array:
    """Return variants as Delta's files store them: the two parts of a null are empty, not null."""
    parts = [pc.fill_null(column.field(part.name), b"") for part in VARIANT_FILE]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT_FILE), mask=pc.is_null(column))
