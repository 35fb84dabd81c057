"""Versions in the order of the primary index: equal ranges, and the differing keys of a page."""

import random

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from observe.proof.sorted_versions import (
    SortedVersions,
    SpaceKeyFunctions,
    server_page,
    sorted_versions,
    space_key_functions,
)
from observe.proof.space_proof import Difference, SpaceProof
from schemas.errors import TupleError
from schemas.space import KeyPart, Space

PARTS = (KeyPart(1, "string"), KeyPart(0, "integer", is_descending=True))
KEYS = space_key_functions(Space(600, 1, "s", "memtx", primary_key=PARTS))


def packed(number: int, text: str, *rest: object) -> bytes:
    return bytes(msgpack.packb([number, text, *rest]))


def in_order(tuples: list[bytes]) -> list[bytes]:
    """Return tuples in index order: by text, then by descending number."""
    return sorted(tuples, key=lambda one: (msgpack.unpackb(one)[1], -msgpack.unpackb(one)[0]))


def versions_of(tuples: list[bytes], keys: SpaceKeyFunctions = KEYS) -> SortedVersions:
    data = [pa.array(some, pa.binary()) for some in (tuples[::2], tuples[1::2]) if some]
    return sorted_versions([(keys.canonical_keys(one), one) for one in data], keys)


TUPLES = [
    packed(number, text, number * 3) for number in (-70000, -1, 0, 5, 300) for text in ("", "a", "aa", "b")
]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_each_page_of_equal_tuples_is_equal(size: int) -> None:
    random.Random(1).shuffle(shuffled := list(TUPLES))
    versions, ordered, after = versions_of(shuffled), in_order(TUPLES), None
    for begin in range(0, len(ordered), size):
        some = ordered[begin : begin + size]
        page = server_page(some, KEYS)
        last = KEYS.sortable_key(page.keys[-1].as_py())
        low, high = versions.index_range(after, last)
        total = int(page.hashes.sum(dtype=np.uint64))
        assert (low, high) == (begin, begin + len(some))
        assert versions.range_has_checksum(low, high, len(some), total)
        assert not versions.range_has_checksum(low, high, len(some), total ^ 1)
        assert not versions.range_has_checksum(low, high - 1, len(some), total)
        assert versions.differing_keys(low, high, page) == []
        after = last
    assert versions.index_range(after, None) == (len(TUPLES), len(TUPLES))


def test_changed_missing_and_additional_tuples_differ() -> None:
    ordered = in_order(TUPLES)
    on_server = [
        *ordered[:4],
        packed(1, "aaa"),
        *ordered[5:9],
        packed(*msgpack.unpackb(ordered[9])[:2]),
        *ordered[10:],
    ]
    versions, page = versions_of(TUPLES), server_page(on_server, KEYS)
    expected = {
        KEYS.canonical_keys(pa.array([one]))[0].as_py() for one in (ordered[4], packed(1, "aaa"), ordered[9])
    }
    assert set(versions.differing_keys(0, len(versions), page)) == expected


def test_a_range_ends_with_its_last_key_though_the_tables_do_not_have_it() -> None:
    versions = versions_of(TUPLES)
    bound = KEYS.sortable_key(msgpack.packb(["a", 4]))
    assert versions.index_range(None, bound) == (0, 5 + 2)
    assert versions.index_range(bound, None) == (7, 20)


def test_no_versions_equal_an_empty_page() -> None:
    versions = versions_of([])
    assert versions.index_range(None, None) == (0, 0)
    assert versions.range_has_checksum(0, 0, 0, 0)
    assert versions.differing_keys(0, 0, server_page([TUPLES[0]], KEYS)) != []


def test_a_tuple_without_its_key_is_refused() -> None:
    with pytest.raises(TupleError, match="has no key"):
        server_page([msgpack.packb(["text", 1])], KEYS)


def test_a_result_names_keys_with_both_tuples() -> None:
    difference = Difference(msgpack.packb([7]), msgpack.packb([7, "a"]), None)
    proof = SpaceProof("orders", "uuid", "host:3301", 12, 100, 3, (difference,), 2)
    assert not proof.holds
    assert str(proof) == (
        "orders of replicaset uuid, asked host:3301: 1 of 100 keys differ; "
        "2 keys changed during each comparison and have no result\n"
        "  key [7]: server [7, 'a'], tables none"
    )
    row = proof.validation_row()
    assert (row["holds"], row["rows"], row["unexpected"]) == (False, 100, 1)
    assert SpaceProof("orders", "uuid", "host", 1, moving=3).holds
    assert str(SpaceProof("orders", "uuid", "host", 1, 50)).endswith(": 50 tuples are equal")
    assert str(SpaceProof("orders", "uuid", "host", 1, 50, moving=50)).endswith(
        ": 50 tuples were read, no key differs; 50 keys changed during each comparison and have no result"
    )
    assert not SpaceProof("orders", "uuid", "host", 1, error="gone").holds
