"""Exact tuples → the columns of a space's table.

Pure. Typed columns are made here and only here. A value that does not fit its column leaves the column null: the row
is in the table all the same, `_misfits` names the column, and `_quarantine` says why. A tuple whose fields
cannot be distinguished has no row, and so has every one that does not fit where the space chooses that: it goes to
`_quarantine`, and stays a version (`unfit`), so that a later UPDATE finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.encode.masks import Mask
from pipeline.plan.tables import TablePlan
from schemas.layout import ERROR_COLUMN, EXTRA_COLUMN, INEXACT_COLUMN, MISFITS_COLUMN, TableLayout
from schemas.types import VARIANT_ARROW
from udfs.buffers import as_array
from udfs.tuples.plan import Plan, plan_of
from udfs.tuples.tuples import decode

VARIANT_FILE = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
"""A variant as Delta's files have it (protocol of Delta, "Variant data type")."""

_SOURCES = {
    "_key": "key",
    "_tuple": "tuple",
    "_global_id": "global_id",
    "_replicaset_id": "replicaset_id",
    "_lsn": "lsn",
    "_timestamp": "timestamp",
    "_created": "created",
}
"""Columns that every space's table has, with those of `pipeline.resolve.resolve.PUTS`."""


@dataclass(frozen=True)
class TableEncoding:
    """How the rows of one table are made. Picklable.

    Parameters
    ----------
    name, exact : str
        The table that readers see, and the one with the exact tuples.
    layout : TableLayout
    formats : mapping of int to int
        Replicaset id to the index of its format.
    mask : Mask or None
    sets_misfits_aside : bool
        Whether rows with a value that its column cannot hold are left out of the table.
    has_moved_fields : bool
        Whether rows that are in the table have other columns now.
    has_added_fields : bool
        Whether rows that are in the table have other columns now if they have something in `_extra`.

    """

    name: str
    exact: str
    layout: TableLayout
    formats: Mapping[int, int]
    mask: Mask | None = None
    sets_misfits_aside: bool = False
    has_moved_fields: bool = False
    has_added_fields: bool = False

    @cached_property
    def plan(self) -> Plan:
        """What the decoding of tuples needs."""
        return plan_of(self.layout)

    def format_of(self, replicasets: NDArray[np.int32]) -> pa.Array:
        """Return the format of tuples by their replicaset; one that a policy made has minus its last writer's id."""
        size = max(self.formats, default=0) + 1
        known = np.full(size + 1, -1, np.int32)
        for replicaset_id, index in self.formats.items():
            known[replicaset_id] = index
        found = known[np.minimum(np.abs(replicasets), size)]
        return pa.array(found, mask=found < 0)


def encoding_of(table: TablePlan) -> TableEncoding:
    """Return how the rows of a table of a batch are made."""
    return TableEncoding(
        *(table.name, table.exact, table.layout, table.formats, table.mask),
        sets_misfits_aside=table.sets_misfits_aside,
        has_moved_fields=table.has_moved_fields,
        has_added_fields=table.has_added_fields,
    )


@dataclass(frozen=True)
class Encoded:
    """Rows of a table.

    Parameters
    ----------
    rows : pyarrow.Table
        Of the exact table, as files have them. Columns that are null in all rows are left out where a table can do
        without: `_extra`, `_inexact`, `_misfits`.
    misfits : pyarrow.Table
        Rows of `PUTS` that do not wholly fit, with `reason` and `misfits`: the columns that they lack in the table,
        null for those that are not in `rows`.

    """

    rows: pa.Table
    misfits: pa.Table

    @property
    def set_aside(self) -> pa.Table:
        """The misfits that are not in `rows`."""
        return self.misfits.filter(pc.is_null(self.misfits["misfits"]))


def encode(puts: pa.Table, encoding: TableEncoding) -> Encoded:
    """Return rows of one table.

    Parameters
    ----------
    puts : pyarrow.Table
        `pipeline.resolve.resolve.PUTS`, of this table alone.
    encoding : TableEncoding

    """
    puts = puts.combine_chunks()
    formats = encoding.format_of(puts["replicaset_id"].to_numpy())
    typed = decode(as_array(puts["tuple"]), encoding.plan, formats)
    error = typed.field(ERROR_COLUMN)
    named = typed.field(MISFITS_COLUMN)
    if encoding.sets_misfits_aside:
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
        if field.name in _OPTIONAL and column.null_count == len(column):
            continue
        columns[field.name] = file_column(column)
    columns |= {name: puts[source] for name, source in _SOURCES.items()}
    return Encoded(pa.table(columns), misfits)


_OPTIONAL = (EXTRA_COLUMN, INEXACT_COLUMN, MISFITS_COLUMN)


def file_column(column: pa.Array) -> pa.Array:
    """Return a typed column as files have it."""
    return whole_variants(column) if column.type == VARIANT_ARROW else column


def whole_variants(column: pa.Array) -> pa.Array:
    """Return variants as files have them: the parts of a null are empty, not null."""
    parts = [pc.fill_null(column.field(part.name), b"") for part in VARIANT_FILE]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT_FILE), mask=pc.is_null(column))
