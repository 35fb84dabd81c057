"""The compiled search in large containers finds what the loops find, or leaves the answer to them."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from schemas.errors import TupleError
from tests.fuzz import draw as made
from tests.fuzz.draw import Draw
from udfs.operations import element_search
from udfs.operations.element_search import find_text, skip_many
from udfs.operations.msgpack_walk import header


def outcome(step: Any, *given: Any) -> Any:
    try:
        return step(*given)
    except (TupleError, IndexError) as error:
        return type(error)


def both(monkeypatch: pytest.MonkeyPatch, step: Any, *given: Any) -> Any:
    """Return what the compiled loop gives, which is what the other one gives."""
    answers = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(element_search, "MANY_ELEMENTS", least)
        monkeypatch.setattr(element_search, "MANY_BYTES", least)
        answers.append(outcome(step, *given))
    assert answers[0] == answers[1], given
    return answers[0]


@pytest.mark.parametrize("seed", range(40))
def test_both_find_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw, found = Draw(f"elements {seed}"), 0
    for _ in range(25):
        keys = [
            draw.choice((made.value(draw), msgpack.packb(draw.text(), unicode_errors="surrogateescape")))
            for _ in range(9)
        ]
        pairs = b"".join(key + made.value(draw) for key in keys)
        data = b"\x89" + pairs
        data = made.mutated(draw, data) if draw.chance(3) else data
        for name in (b"", b"a", b"name", *(one[1:] for one in keys[:3])):
            answer = both(monkeypatch, find_text, data, 1, len(data), 9, name)
            found += isinstance(answer, tuple)
            both(monkeypatch, find_text, data, 1, len(data) // 2, 9, name)
        both(monkeypatch, skip_many, data, 1, draw.randrange(20))
    assert found > 5


def test_a_large_map_and_array(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"n{number}" * (1 + number % 90): number for number in range(3000)}
    data = msgpack.packb(names)
    count, pos = header(data, 0)
    for name, number in list(names.items())[::97]:
        answer = both(monkeypatch, find_text, data, pos, len(data), count, name.encode())
        assert msgpack.unpackb(data[answer[1] : skip_many(data, answer[1], 1)]) == number
    assert both(monkeypatch, find_text, data, pos, len(data), count, b"none") is None
    assert both(monkeypatch, skip_many, data, pos, 2 * count) == len(data)
    assert both(monkeypatch, skip_many, data, pos, 2 * count + 1) is TupleError
    assert both(monkeypatch, skip_many, data[:-1], pos, 2 * count) is TupleError
