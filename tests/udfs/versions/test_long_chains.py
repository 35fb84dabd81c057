"""Long chains of operations on one key: what a row costs does not grow with the rows before it, nor does memory."""

import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from schemas.errors import TupleError, UnsupportedError
from tests.udfs.operations.test_operations import FORMAT, MODERN
from udfs.operations.operations import apply_update, apply_upsert
from udfs.versions.key_state import TUPLE_LIMIT_BYTES, Fold, Version

MIB = 1 << 20
WIDE = [1, "a", 1, "x"] + [1] * 500_000


def chain(
    first: list[Any], rows: int, operations: Callable[[int], Any], limit: int = TUPLE_LIMIT_BYTES
) -> tuple[Fold, int]:
    """Return the state after some UPDATEs, and the bytes of their operations."""
    fold, size = Fold([MODERN], limit), 0
    fold.start(Version(msgpack.packb(first), 1, 1, None, None))
    for number in range(rows):
        data = msgpack.packb(operations(number))
        size += len(data)
        fold.apply(("UPDATE", data, None, 0, 1, number + 2, None, 0))
    return fold, size


def splice(_: int) -> Any:
    return [[":", 3, 0, 1, "y"]]


def add_or_splice(number: int) -> Any:
    return [["+", 2, 1]] if number % 2 else splice(number)


def insert_and_delete(_: int) -> Any:
    return [["!", 4, 7], ["#", -1, 1]]


@pytest.mark.parametrize("operations", [splice, add_or_splice, insert_and_delete])
def test_a_row_costs_what_it_changes_and_not_every_field(operations: Callable[[int], Any]) -> None:
    """Before, each of these rows took a second of half a million fields."""
    began = time.process_time()
    fold, _ = chain(WIDE, 200, operations)
    assert len(msgpack.unpackb(fold.version.tuple or b"")) == len(WIDE)
    assert fold.faults == []
    assert time.process_time() - began < 20


def test_a_tuple_that_grows_by_fields_costs_its_bytes() -> None:
    began = time.process_time()
    fold, size = chain([1, "a", 1, "x"], 16_000, lambda _: [["!", -1, "y" * 4000]])
    assert size < len(fold.version.tuple or b"") + 16_000 * 20
    assert fold.faults == []
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "operations",
    [
        lambda _: [["!", -1, "y" * 4000]],
        lambda _: [["=", 4, "y" * 4000], ["!", 4, 0]],
        lambda _: [[":", 3, 1 << 30, 0, "y" * 4000]],
        lambda _: [["!", "[4][1]", "y" * 4000]] if _ else [["=", 3, []]],
    ],
)
def test_a_tuple_that_becomes_too_long_is_a_fault_that_names_the_option(
    operations: Callable[[int], Any],
) -> None:
    """Memory stays below a few times the limit, however many rows follow; the key is unknown until it is given."""
    limit = 2 * MIB
    tracemalloc.start()
    try:
        fold, size = chain([1, "a", 1, "x"], 4000, operations, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 7 * limit
    assert fold.is_unfit
    assert "max_tuple_bytes is 2097152" in fold.faults[0].reason
    assert limit - 5000 < len(fold.version.tuple or b"") <= limit + 5
    assert peak < 6 * limit + 4000 * 600  # each row behind it is a fault of its own
    fold.apply(("REPLACE", msgpack.packb([1]), None, 0, 1, 9999, None, 0))
    assert not fold.is_unfit


def test_the_limit_is_the_same_wherever_a_batch_ends() -> None:
    """The rows of one key may be in one batch or in many: which row is refused must not depend on it."""
    limit, draw = 5000, random.Random(4)
    rows = [
        msgpack.packb(
            draw.choice(([["!", -1, "y" * draw.randrange(90)]], [["=", 4, "z" * draw.randrange(90)]]))
        )
        for _ in range(300)
    ]
    whole, cut = Fold([MODERN], limit), Fold([MODERN], limit)
    base = Version(msgpack.packb([1, "a", 1, "x", 0]), 1, 1, None, None)
    whole.start(base)
    cut.start(base)
    for number, data in enumerate(rows):
        for fold in (whole, cut):
            fold.apply(("UPDATE", data, None, 0, 1, number + 2, None, 0))
        assert cut.is_unfit == whole.is_unfit
        if draw.random() < 0.3 and not cut.is_unfit:
            cut.start(cut.version)
        assert cut.version.tuple == whole.version.tuple
    assert whole.is_unfit


def test_nulls_between_fields_are_bounded() -> None:
    fold, _ = chain([1], 3, lambda number: [["=", 900_000 * (number + 1), 1]], limit=2 * MIB)
    assert [fault.reason.startswith("operations make a tuple of 2700001") for fault in fold.faults] == [True]
    with pytest.raises(TupleError, match="nulls do not fit"):
        apply_update(b"\x91\x01", msgpack.packb([["=", 1 << 21, 1]]), 0, MODERN)


@pytest.mark.parametrize("fmt", [FORMAT, MODERN], ids=["2.6", "3"])
@pytest.mark.parametrize("seed", range(8))
def test_a_chain_gives_what_its_rows_give_one_by_one(fmt: Any, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(150):
        tuple_ = msgpack.packb(
            [5, "text", draw.randrange(9), {"a": [1, 2]}, [1, [2]]][: draw.randrange(1, 6)]
        )
        fold = Fold([fmt])
        fold.start(Version(tuple_, 1, 1, None, None))
        for lsn in range(2, 12):
            field = draw.choice((0, 1, 2, 3, 4, 5, 7, -1, "[4].a", "[5][1]", "[4].b", "[5][2][1]"))
            code = draw.choice("==+-!#:|")
            arguments: dict[str, list[Any]] = {
                "#": [draw.choice((1, 1, 2))],
                ":": [draw.randrange(-2, 5), 1, "y"],
            }
            rest = arguments.get(code, [draw.randrange(9)])
            data = msgpack.packb([[code, field, *rest] for _ in range(draw.choice((1, 1, 2)))])
            kind = draw.choice(("UPDATE", "UPSERT"))
            try:
                if kind == "UPDATE":
                    wanted = apply_update(tuple_, data, 0, fmt)
                else:
                    wanted = apply_upsert(tuple_, b"\x91\x05", data, 0, fmt)
            except (TupleError, UnsupportedError):
                wanted = None
            ops = (data, None) if kind == "UPDATE" else (b"\x91\x05", data)
            fold.apply((kind, *ops, 0, 1, lsn, None, 0))
            assert fold.is_unfit == (wanted is None)
            if wanted is None:
                assert fold.version.tuple == tuple_
                break
            tuple_ = wanted
            if draw.random() < 0.3:
                assert fold.version.tuple == tuple_
        if not fold.is_unfit:
            assert fold.version.tuple == tuple_
