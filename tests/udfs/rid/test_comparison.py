"""Every rule of the comparison, named after it, seen from both sides."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ulid import ULID

from tests.udfs.rid.rids import of, rid, ulid
from udfs.rid.comparison import Comparison, Generation, NodeName, Verdict, compare, draw, rid_generations
from udfs.rid.value import FLAG_FIELDS, FileLock, Rid

SAME, SYNC, SPLIT, UNRELATED = Verdict.SAME, Verdict.SYNC, Verdict.SPLIT_BRAIN, Verdict.UNRELATED

RULES = [
    (
        "bases exist and differ: unrelated",
        "0000:0003:0002:0001:0001",
        "0000:0003:0002:0001:0009",
        Comparison(UNRELATED),
    ),
    (
        "one base is missing: the network is the same",
        "0000:0001:0000:0000:0001",
        "0000:0000:0000:0000:0000",
        Comparison(SYNC, "a", "b"),
    ),
    (
        "both in the initial state: same",
        "0000:0000:0000:0000:0000",
        "0000:0000:0000:0000:0000",
        Comparison(SAME),
    ),
    (
        "both indexes are 0: same, whatever is behind",
        "0000:0003:0002:0001:0001",
        "0000:0003:0000:0000:0001",
        Comparison(SAME, common=ulid(3), common_indexes=(0, 0)),
    ),
    (
        "index 0 in a, 1 in b: b to a",
        "0000:0002:0001:0000:0001",
        "0000:0003:0002:0001:0001",
        Comparison(SYNC, "b", "a", ulid(2), (0, 1)),
    ),
    (
        "index 0 in a, 2 in b: b to a",
        "0000:0001:0000:0000:0001",
        "0000:0003:0002:0001:0001",
        Comparison(SYNC, "b", "a", ulid(1), (0, 2)),
    ),
    (
        "index 0 in b, 1 in a: a to b",
        "0000:0003:0002:0001:0001",
        "0000:0002:0001:0000:0001",
        Comparison(SYNC, "a", "b", ulid(2), (1, 0)),
    ),
    (
        "both indexes are 1: split brain, the younger primary by its head",
        "0000:0005:0002:0001:0001",
        "0000:0004:0002:0001:0001",
        Comparison(SPLIT, common=ulid(2), common_indexes=(1, 1), younger_node="a"),
    ),
    (
        "indexes 2 and 1: split brain, the data point before it is the common generation",
        "0000:0005:0003:0002:0001",
        "0000:0006:0002:0001:0001",
        Comparison(SPLIT, common=ulid(2), common_indexes=(2, 1), younger_node="b"),
    ),
    (
        "indexes 2 and 2",
        "0000:0005:0003:0002:0001",
        "0000:0007:0006:0002:0001",
        Comparison(SPLIT, common=ulid(2), common_indexes=(2, 2), younger_node="b"),
    ),
    (
        "no common generation, one head is empty: towards it",
        "0000:0000:0000:0000:0001",
        "0000:0003:0002:0001:0001",
        Comparison(SYNC, "b", "a"),
    ),
    (
        "no common generation, two heads: split brain of which nothing is known",
        "0000:0004:0003:0002:0001",
        "0000:0007:0006:0005:0001",
        Comparison(SPLIT),
    ),
    (
        "cycled more than 3 times while unconnected: split brain, but the base tells that they are related",
        "0000:0005:0004:0003:0001",
        "0000:0001:0000:0000:0001",
        Comparison(SPLIT),
    ),
    (
        "an empty place is no common generation",
        "0000:0004:0000:0000:0001",
        "0000:0005:0000:0000:0001",
        Comparison(SPLIT),
    ),
    (
        "incoming takes no part",
        "0004:0002:0001:0000:0001",
        "0000:0003:0002:0001:0001",
        Comparison(SYNC, "b", "a", ulid(2), (0, 1)),
    ),
]

NAMES = [row[0] for row in RULES]


@pytest.mark.parametrize(("a", "b", "expected"), [row[1:] for row in RULES], ids=NAMES)
def test_rule(a: str, b: str, expected: Comparison) -> None:
    assert compare(rid(a), rid(b)) == expected


def turned(comparison: Comparison) -> Comparison:
    """Return the comparison with the two nodes swapped."""
    other: dict[NodeName | None, NodeName | None] = {"a": "b", "b": "a", None: None}
    return replace(
        comparison,
        source=other[comparison.source],
        target=other[comparison.target],
        younger_node=other[comparison.younger_node],
        common_indexes=None
        if comparison.common_indexes is None
        else (comparison.common_indexes[1], comparison.common_indexes[0]),
    )


@pytest.mark.parametrize(("a", "b", "expected"), [row[1:] for row in RULES], ids=NAMES)
def test_rule_with_the_nodes_swapped(a: str, b: str, expected: Comparison) -> None:
    assert compare(rid(b), rid(a)) == turned(expected)


FEW = st.integers(0, 5).map(ulid)


@settings(deadline=None)
@given(*[st.lists(FEW, min_size=5, max_size=5)] * 2)
def test_both_sides_agree(a: list[ULID], b: list[ULID]) -> None:
    one, other = of(a), of(b)
    assert compare(other, one) == turned(compare(one, other))


@settings(deadline=None)
@given(
    st.lists(FEW, min_size=5, max_size=5),
    st.fixed_dictionaries(dict.fromkeys(FLAG_FIELDS[:-1], st.booleans())),
    st.sampled_from(FileLock),
)
def test_flags_do_not_matter(ulids: list[ULID], flags: dict[str, Any], lock: FileLock) -> None:
    plain = rid("0000:0003:0002:0001:0001")
    flagged = replace(of(ulids), **flags, file_lock=lock)
    assert compare(flagged, plain) == compare(of(ulids), plain)


def test_heads_of_one_millisecond_have_no_younger() -> None:
    a, b = rid("0000:0005:0001:0000:0001"), rid("0000:0005:0001:0000:0001")
    b = replace(b, head=ULID.from_int(int(b.head) + 1))
    assert compare(a, b) == Comparison(SPLIT, common=ulid(1), common_indexes=(1, 1), younger_node=None)


def test_as_json() -> None:
    a, b = rid("0000:0005:0002:0001:0001"), rid("0000:0004:0002:0001:0001")
    assert compare(a, b).as_json() == {
        "verdict": "split_brain",
        "from": None,
        "to": None,
        "common": str(ulid(2)),
        "younger": "a",
    }
    assert compare(a, Rid()).as_json() == {
        "verdict": "sync",
        "from": "a",
        "to": "b",
        "common": None,
        "younger": None,
    }


def test_two_branches_and_what_they_have_in_common() -> None:
    a = [Generation(ulid(5), "head"), Generation(ulid(2)), Generation(ulid(1))]
    b = [Generation(ulid(4), "head"), Generation(ulid(3), "x"), Generation(ulid(1))]
    rows = [line.split("  ") for line in draw({"a": a, "b": b}).splitlines()]
    assert rows[0] == ["a b"]
    drawn = [(row[0] if row[0] else "  " + row[1], row[-1]) for row in rows[1:]]
    assert [mark.rstrip() for mark, _ in drawn] == ["*", "| *", "| *", "* |", "* *"]
    assert [note for _, note in drawn][:3] == ["a: head", "b: head", "b: x"]
    assert [
        str(ulid(n)) in line
        for n, line in zip((5, 4, 3, 2, 1), draw({"a": a, "b": b}).splitlines()[1:], strict=True)
    ]


def test_one_node_alone_needs_no_heading() -> None:
    assert draw({"": [Generation(ulid(1 << 20), "head, epochs 0 to 3")]}).splitlines() == [
        f"*  {ulid(1 << 20)}  1970-01-01 00:17:28  head, epochs 0 to 3"
    ]


def test_the_generations_that_a_rid_names() -> None:
    found = rid_generations(rid("0004:0003:0002:0000:0001"))
    assert found == [Generation(ulid(3)), Generation(ulid(2))]


def test_nothing_to_draw() -> None:
    assert draw({"a": rid_generations(Rid()), "b": []}) == "no generation yet"
