"""All versions of a key for any division of the rows into batches; the last one equals the fold of the key."""

from __future__ import annotations

from typing import Any

import msgpack
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from udfs.operations.tuple_format import TupleFormat
from udfs.versions.fold import fold
from udfs.versions.history import ROW_COLUMNS, history_arrow
from udfs.versions.version import RowChange

FORMATS = (TupleFormat(),)
SCHEMA = pa.schema(
    [
        *(("key", pa.binary()), ("place", pa.int32()), ("type", pa.string()), ("tuple", pa.binary())),
        *(("operations", pa.binary()), ("index_base", pa.int32()), ("global_id", pa.int64())),
        *(("lsn", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC")), ("layout", pa.int32())),
    ]
)


def change(kind: str, lsn: int, value: Any = None, operations: Any = None) -> RowChange:
    data = None if value is None else msgpack.packb(value)
    packed = None if operations is None else msgpack.packb(operations)
    return RowChange(kind, data, packed, 1 if operations else None, 7, lsn, 1000 * lsn)


def versions_of(changes: dict[bytes, list[RowChange]], cuts: list[int] | None = None) -> list[dict[str, Any]]:
    rows = [
        {"key": key, "place": place, **dict(zip(("type", *ROW_COLUMNS[1:]), one, strict=True))}
        for key, own in sorted(changes.items())
        for place, one in enumerate(own)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    ends = sorted({min(cut, len(rows)) for cut in cuts or []} | {len(rows)})
    begins = [0, *ends[:-1]]
    batches = [batch.slice(begin, end - begin) for begin, end in zip(begins, ends, strict=True)]
    found = history_arrow(batches, ["key"], ["place"], FORMATS)
    return [row for part in found for row in part.to_pylist()]


LIFE = [
    change("UPDATE", 1, operations=[["=", 2, "nobody"]]),
    change("INSERT", 2, [1, "a", 5]),
    change("UPDATE", 3, operations=[["+", 3, 2]]),
    change("DELETE", 4),
    change("DELETE", 5),
    change("UPSERT", 6, [1, "again", 0], [["+", 3, 1]]),
    change("UPSERT", 7, [1, "again", 0], [["+", 3, 1]]),
]


def test_each_row_with_an_effect_is_a_version() -> None:
    found = versions_of({b"k": LIFE, b"other": [change("REPLACE", 9, [2])]})
    assert [(row["lsn"], row["state"], row["tuple"] and msgpack.unpackb(row["tuple"])) for row in found] == [
        (2, "present", [1, "a", 5]),
        (3, "present", [1, "a", 7]),
        (4, "deleted", None),
        (6, "present", [1, "again", 0]),
        (7, "present", [1, "again", 1]),
        (9, "present", [2]),
    ]
    assert [row["place"] for row in found] == [1, 2, 3, 5, 6, 0]


def test_a_row_that_cannot_be_applied_is_an_unknown_version() -> None:
    bad = change("UPDATE", 2, operations=[["+", 2, 1]])
    found = versions_of({b"k": [change("INSERT", 1, [1, "text"]), bad, change("REPLACE", 3, [1, "new"])]})
    assert [row["state"] for row in found] == ["present", "unfit", "present"]
    assert found[1]["tuple"] is None
    assert found[1]["reason"]


VALUES = st.integers(0, 9)
CHANGES = st.lists(
    st.one_of(
        st.builds(lambda n: ("REPLACE", [1, "x", n], None), VALUES),
        st.builds(lambda n: ("UPDATE", None, [["=", 3, n]]), VALUES),
        st.builds(lambda n: ("UPSERT", [1, "u", n], [["=", 3, n]]), VALUES),
        st.just(("DELETE", None, None)),
    ),
    max_size=8,
)


@given(st.lists(CHANGES, min_size=1, max_size=4), st.lists(st.integers(0, 30), max_size=4))
def test_any_division_into_batches_gives_the_same_versions(
    keys: list[list[tuple[str, Any, Any]]], cuts: list[int]
) -> None:
    changes = {
        bytes([number]): [change(kind, lsn, value, ops) for lsn, (kind, value, ops) in enumerate(own, 1)]
        for number, own in enumerate(keys)
    }
    found = versions_of(changes, cuts)
    assert found == versions_of(changes)
    for key, own in changes.items():
        last = fold(None, own, FORMATS)
        rows = [row for row in found if row["key"] == key]
        assert (rows[-1]["tuple"] if rows else None) == (None if last is None else last.tuple)
