"""Compares a space's table with its second one (`pipeline.requests.beside`), key by key.

Both are read in ranges of keys, so memory does not grow with them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.lookup.key_search import LookupKeys
from udfs.buffers import as_array
from warehouse.delta.commits import OpenTables
from warehouse.delta.table_files import OpenFile, open_file

ROWS_AT_ONCE = 500_000
"""About as many rows of each table are compared at a time."""

MAX_EXAMPLES = 10
"""The greatest number of differing keys whose values are shown."""

LONGEST_VALUE_CHARACTERS = 60
"""A longer value is cut in an example."""

KEY = "_key"


@dataclass
class TableComparison:
    """How a table and its second one differ."""

    types: Mapping[str, tuple[str | None, str | None]]
    """By column, of those that differ: its type in the table, and in the second one; None if there is no column."""
    rows: tuple[int, int] = (0, 0)
    only_in_table: int = 0
    only_beside: int = 0
    """The number of keys that only one of the tables has."""
    differing: int = 0
    """The number of keys that both tables have, with values that differ."""
    by_column: dict[str, int] = field(default_factory=dict)
    """By column of both tables: in how many keys its values differ."""
    examples: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield the comparison as text."""
        yield f"rows: {self.rows[0]} in the table, {self.rows[1]} beside"
        yield f"keys only in the table: {self.only_in_table}; only beside: {self.only_beside}"
        for name, (old, new) in self.types.items():
            yield f"column {name}: {old or 'none'} -> {new or 'none'}"
        counts = ", ".join(f"{name} of {count}" for name, count in self.by_column.items() if count)
        yield f"keys with other values: {self.differing}" + (f"; {counts}" if counts else "")
        yield from (f"  {text}" for text in self.examples)


def compare(table: str, before: OpenTables, after: OpenTables) -> TableComparison:
    """Compare the versions of a table that two sets of open tables have."""
    columns = [
        {one.name: one.dataType.simpleString() for one in each.columns(table)} for each in (before, after)
    ]
    names = list(dict.fromkeys([*columns[0], *columns[1]]))
    kinds = {name: (columns[0].get(name), columns[1].get(name)) for name in names}
    found = TableComparison({name: kind for name, kind in kinds.items() if kind[0] != kind[1]})
    shared = [
        name for name, kind in kinds.items() if None not in kind and name != KEY and _can_compare(*kind)
    ]
    found.by_column = dict.fromkeys(shared, 0)
    for first, last in _ranges(table, before):
        old, new = (_rows_between(table, each, [KEY, *shared], first, last) for each in (before, after))
        _compare_rows(found, old, new)
    return found


def _can_compare(old: str | None, new: str | None) -> bool:
    return old == new or "variant" not in (old, new)


def _ranges(table: str, tables: OpenTables) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield ranges of keys with about `ROWS_AT_ONCE` rows: the first key of each, and that of the next; None: open."""
    begins: list[tuple[bytes, int]] = []
    for file in tables.files(table):
        with open_file(tables.location, table, file) as opened:
            ranges = opened.key_ranges(KEY)
        begins += [
            (one, rows) for one, rows in zip(ranges.least, ranges.rows, strict=True) if one is not None
        ]
    first, count = None, 0
    for least, rows in sorted(begins):
        if count >= ROWS_AT_ONCE and least != first:
            yield first, least
            first, count = least, 0
        count += rows
    yield first, None


def _rows_between(
    table: str, tables: OpenTables, columns: Sequence[str], first: bytes | None, last: bytes | None
) -> pa.Table:
    parts = []
    for file in tables.files(table):
        with open_file(tables.location, table, file) as opened:
            present = [name for name in columns if name in opened.footer.schema.to_arrow_schema().names]
            for part in opened.read_row_groups(present, _groups_between(opened, first, last)):
                rows = part.rows
                if first is not None:
                    rows = rows.filter(pc.greater_equal(rows[KEY], pa.scalar(first, pa.binary())))
                if last is not None:
                    rows = rows.filter(pc.less(rows[KEY], pa.scalar(last, pa.binary())))
                parts.append(rows)
    if not parts:
        return pa.table({KEY: pa.array([], pa.binary())})
    whole = pa.concat_tables(parts, promote_options="default").combine_chunks()
    return whole.take(pc.sort_indices(whole, sort_keys=[(KEY, "ascending")])).combine_chunks()


def _groups_between(opened: OpenFile, first: bytes | None, last: bytes | None) -> list[int]:
    ranges = opened.key_ranges(KEY)
    return [
        number
        for number, (least, greatest) in enumerate(zip(ranges.least, ranges.greatest, strict=True))
        if (first is None or greatest is None or greatest >= first)
        and (last is None or least is None or least < last)
    ]


def _compare_rows(found: TableComparison, old: pa.Table, new: pa.Table) -> None:
    found.rows = (found.rows[0] + old.num_rows, found.rows[1] + new.num_rows)
    places = LookupKeys.of(as_array(old[KEY])).groups.find(
        np.zeros(new.num_rows, np.int32), as_array(new[KEY])
    )
    only_new, only_old = np.flatnonzero(places < 0), np.ones(old.num_rows, np.bool_)
    only_old[places[places >= 0]] = False
    found.only_in_table += int(only_old.sum())
    found.only_beside += len(only_new)
    one, other = old.take(pa.array(places[places >= 0])), new.filter(pa.array(places >= 0))
    differs = {name: _differ(one, other, name) for name in found.by_column}
    for name, rows in differs.items():
        found.by_column[name] += int(rows.sum())
    any_differs = np.logical_or.reduce([np.zeros(one.num_rows, np.bool_), *differs.values()])
    found.differing += int(any_differs.sum())
    texts = [(key, "only in the table") for key in _first_keys(old, np.flatnonzero(only_old))]
    texts += [(key, "only beside") for key in _first_keys(new, only_new)]
    for row in np.flatnonzero(any_differs)[:MAX_EXAMPLES].tolist():
        changes = (_change_text(one, other, name, row) for name in differs if differs[name][row])
        texts.append((one[KEY][row].as_py(), ", ".join(changes)))
    for key, text in sorted(texts)[: MAX_EXAMPLES - len(found.examples)]:
        found.examples.append(f"key {key.hex()}: {text}")


def _first_keys(rows: pa.Table, numbers: NDArray[np.intp]) -> list[bytes]:
    found: list[bytes] = rows[KEY].take(pa.array(numbers[:MAX_EXAMPLES])).to_pylist()
    return found


def _change_text(one: pa.Table, other: pa.Table, name: str, row: int) -> str:
    values = (str(_value(rows, name, row))[:LONGEST_VALUE_CHARACTERS] for rows in (one, other))
    return f"{name} {' -> '.join(values)}"


def _value(rows: pa.Table, name: str, row: int) -> Any:
    value = rows[name][row].as_py() if name in rows.column_names else None
    return value.hex() if isinstance(value, bytes) else value


def _differ(one: pa.Table, other: pa.Table, name: str) -> NDArray[np.bool_]:
    """Return in which rows the values of a column differ; a file may lack a column that is null in all of its rows."""
    columns = [as_array(rows[name]) if name in rows.column_names else None for rows in (one, other)]
    kind = next((column.type for column in columns if column is not None), pa.null())
    return _differences(*(pa.nulls(one.num_rows, kind) if column is None else column for column in columns))


def _differences(old: pa.Array, new: pa.Array) -> NDArray[np.bool_]:
    nulls: NDArray[np.bool_] = _flags(pc.xor(pc.is_null(old), pc.is_null(new)))
    if old.type != new.type or pa.types.is_list(old.type):
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return nulls | np.fromiter((not _are_equal(*pair) for pair in pairs), np.bool_, len(old))
    if pa.types.is_null(old.type):
        return nulls
    if pa.types.is_struct(old.type):
        parts = [_differences(*pair) for pair in zip(old.flatten(), new.flatten(), strict=True)]
        for part in parts:
            nulls |= part
        return nulls
    found: NDArray[np.bool_] = _flags(pc.fill_null(pc.not_equal(old, new), False))
    if pa.types.is_floating(old.type):
        found &= ~_flags(pc.fill_null(pc.and_(pc.is_nan(old), pc.is_nan(new)), False))
    found |= nulls
    return found


def _flags(values: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return found


def _are_equal(old: Any, new: Any) -> bool:
    """Return whether two values of different types are equal: a decimal as text and as a number may be."""
    texts = [isinstance(value, str) for value in (old, new)]
    if any(texts) and not all(texts) and None not in (old, new):
        with suppress(InvalidOperation):
            return Decimal(str(old)) == Decimal(str(new))
    return bool(old == new)
