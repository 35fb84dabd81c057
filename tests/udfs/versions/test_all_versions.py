"""All versions of a key for any division of the rows into batches; the last one equals the fold of the key."""

from collections.abc import Sequence
from typing import Any

import msgpack
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.udfs.versions.folded import fold
from udfs.operations.tuple_format import TupleFormat
from udfs.versions.all_versions import (
    INPUT_COLUMNS,
    KEY_COLUMNS,
    POSITION_COLUMNS,
    VERSIONS_ARROW,
    EndOfAllVersions,
    key_versions,
)
from udfs.versions.key_state import RowChange

FORMATS = (TupleFormat(),)
SCHEMA = pa.schema(
    [
        *(VERSIONS_ARROW.field(name) for name in (*KEY_COLUMNS, *POSITION_COLUMNS, "epoch")),
        *(("type", pa.string()), ("tuple", pa.binary()), ("operations", pa.binary())),
        *(("index_base", pa.int32()), ("global_id", pa.int64()), ("lsn", pa.int64())),
        *(("timestamp", pa.timestamp("us", tz="UTC")), ("layout", pa.int32())),
    ]
)


def change(kind: str, lsn: int, value: Any = None, operations: Any = None) -> RowChange:
    data = None if value is None else msgpack.packb(value)
    packed = None if operations is None else msgpack.packb(operations)
    return RowChange(kind, data, packed, 1 if operations else None, 7, lsn, 1000 * lsn)


def versions_of(
    changes: dict[bytes, list[RowChange]],
    cuts: list[int] | None = None,
    ended_at: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """Return the versions of keys of replicaset 3, whose space was truncated at some bytes; a row's byte is its lsn."""
    rows = [
        dict(zip(INPUT_COLUMNS, (3, key, 0, one.lsn, 0, 5, *one), strict=True))
        for key, own in sorted(changes.items())
        for one in own
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    bounds = sorted({min(cut, len(rows)) for cut in cuts or []} | {len(rows)})
    begins = [0, *bounds[:-1]]
    batches = [batch.slice(begin, end - begin) for begin, end in zip(begins, bounds, strict=True)]
    ends = {3: [EndOfAllVersions((0, byte, 1), 6, 1000 + byte, byte) for byte in ended_at]}
    found = [row for part in key_versions(batches, FORMATS, ends) for row in part.to_pylist()]
    return [row | {"byte": row["position"]} for row in found]


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
    assert [row["byte"] for row in found] == [2, 3, 4, 6, 7, 9]
    assert {(row["replicaset_id"], row["epoch"]) for row in found} == {(3, 5)}


def test_a_truncation_ends_the_versions_that_there_are() -> None:
    rows = [
        change("INSERT", 2, [1]),
        change("REPLACE", 4, [1, 2]),
        change("DELETE", 8),
        change("INSERT", 9, [1]),
    ]
    found = versions_of({b"k": rows, b"later": [change("INSERT", 7, [2])]}, ended_at=[1, 5, 6, 8, 10, 11])
    assert [(row["_key"], row["lsn"], row["type"], row["state"], row["epoch"]) for row in found] == [
        (b"k", 2, "INSERT", "present", 5),
        (b"k", 4, "REPLACE", "present", 5),
        (b"k", 1005, "DELETE", "deleted", 6),
        (b"k", 9, "INSERT", "present", 5),
        (b"k", 1010, "DELETE", "deleted", 6),
        (b"later", 7, "INSERT", "present", 5),
        (b"later", 1008, "DELETE", "deleted", 6),
    ]
    assert [row["global_id"] for row in found if row["state"] == "deleted"] == [None, None, None]


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


@given(
    st.lists(CHANGES, min_size=1, max_size=4),
    st.lists(st.integers(0, 30), max_size=4),
    st.sets(st.integers(0, 9), max_size=3),
)
def test_any_division_into_batches_gives_the_same_versions(
    keys: list[list[tuple[str, Any, Any]]], cuts: list[int], ended_at: set[int]
) -> None:
    changes = {
        bytes([number]): [change(kind, lsn, value, ops) for lsn, (kind, value, ops) in enumerate(own, 1)]
        for number, own in enumerate(keys)
    }
    found = versions_of(changes, cuts, sorted(ended_at))
    assert found == versions_of(changes, None, sorted(ended_at))
    for key, own in changes.items():
        ends = [change("DELETE", byte) for byte in ended_at]
        # At the same byte the row comes first: it is row 0 of the block, the truncation row 1.
        last = fold(None, sorted([*own, *ends], key=lambda row: row.lsn), FORMATS)
        rows = [row for row in found if row["_key"] == key]
        assert (rows[-1]["tuple"] if rows else None) == (None if last is None else last.tuple)
