"""Drawings of the generations of nodes."""

from __future__ import annotations

from tests.udfs.rid.rids import rid, ulid
from udfs.rid.drawing import Generation, draw, rid_generations
from udfs.rid.value import Rid


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
    found = rid_generations(rid("0004:0003:0002:0000:0001"), {ulid(2): "to epoch 7"})
    assert found == [Generation(ulid(3)), Generation(ulid(2), "to epoch 7")]


def test_nothing_to_draw() -> None:
    assert draw({"a": rid_generations(Rid()), "b": []}) == "no generation yet"
