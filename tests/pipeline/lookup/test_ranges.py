"""Which ranges may end a version: the first one behind each row of a key, whatever else there is."""

import random
from typing import Any, cast

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from pipeline.changelog.keyed_rows import DELETED_RANGE, KEYED
from pipeline.lookup.ranges import RowKeyPairs, ranges_in
from pipeline.lookup.reduce_plan import ReducePlan
from schemas.row_types import CHANGE_TYPES
from schemas.space import KeyPart, Space

SLOTS = 3


class PlanOfThree:
    """What `ranges_in` asks of a plan: three slots, in the last of which the key changes its direction."""

    class meanings:  # noqa: N801
        """One definition a slot, and a second one of the last slot."""

        versions = np.array([0, 1, 2, 3], np.int32)

    slot_lineages = np.arange(SLOTS, dtype=np.int32)

    @property
    def schema_versions(self) -> list[Any]:
        parts = [(KeyPart(0, "unsigned", is_descending=one),) for one in (False, False, False, True)]
        return [type("V", (), {"space": Space(1, 1, "s", "memtx", (), own)}) for own in parts]


def row(meaning: int, begin: int | None, end: int | None) -> dict[str, Any]:
    bounds = [msgpack.packb([] if one is None else [one]) for one in (begin, end)]
    return {"meaning": meaning, "type": DELETED_RANGE, "tuple": bounds[0], "operations": bounds[1]}


@pytest.mark.parametrize("seed", range(20))
def test_the_first_range_behind_each_row_of_a_key(seed: int) -> None:
    dice = random.Random(seed)
    keys = [(slot, number) for slot in range(SLOTS) for number in range(12)]
    rows, slots, groups, expected, open_ = [], [], [], set(), dict[int, int]()
    lives = [dice.random() < 0.5 for _ in keys]
    open_ = {key: -1 for key in range(len(keys)) if lives[key]}
    for index in range(80):
        if dice.random() < 0.4:
            meaning = dice.randrange(4)
            slot, down = min(meaning, SLOTS - 1), meaning == SLOTS
            begin, end = (dice.choice([None, *range(13)]) for _ in range(2))
            rows.append(row(meaning, begin, end))
            groups.append(-1)
            for key in list(open_):
                own, number = keys[key]
                after = begin is None or (number <= begin if down else number >= begin)
                before = end is None or (number > end if down else number < end)
                if own == slot and after and before:
                    expected.add((index, key))
                    del open_[key]
        else:
            key = dice.randrange(len(keys))
            slot = keys[key][0]
            rows.append({"meaning": slot, "type": CHANGE_TYPES.index("REPLACE")})
            groups.append(key)
            open_[key] = index
        slots.append(slot)
    table = pa.Table.from_pylist(rows, schema=KEYED)
    found = ranges_in(table, np.array(slots, np.int32), cast(ReducePlan, PlanOfThree()))
    assert found is not None
    packed = pa.array([msgpack.packb([number]) for _, number in keys])
    own_slots = np.array([slot for slot, _ in keys], np.int32)
    hits = found.hit_pairs(own_slots, packed, np.array(groups, np.int32), np.array(lives))
    hit_pairs = set(zip(hits[0].tolist(), hits[1].tolist(), strict=True))
    assert expected <= hit_pairs
    # Where a slot has two orders, a range may be reported for a key that another one has ended.
    assert {one for one in hit_pairs - expected if keys[one[1]][0] < SLOTS - 1} == set()


def test_rows_without_ranges_have_no_ranges_and_are_paired_with_their_own_keys() -> None:
    table = pa.Table.from_pylist([{"meaning": 0, "type": 0}], schema=KEYED)
    assert ranges_in(table, np.zeros(1, np.int32), cast(ReducePlan, PlanOfThree())) is None
    pairs = RowKeyPairs(None, np.array([0, -1, 1], np.int32))
    assert pairs.without_keys(np.array([1], np.int32), 2).keys.tolist() == [0, -1, -1]
    assert pairs.rows_at(np.array([2])).tolist() == [2]
