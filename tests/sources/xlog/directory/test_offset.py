"""Offsets: one text for one position, and nothing else is read as one."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import OffsetError
from sources.xlog.directory.offset import OffsetEntry, from_document, from_text, to_document, to_text

A = "aaaaaaaa-0000-4000-8000-0000000000aa"
B = "bbbbbbbb-0000-4000-8000-0000000000bb"
GOOD: dict[str, Any] = {
    "leader": "a1",
    "file": "00000000000000001344.xlog",
    "position": 1205,
    "vclock": {"1": 729, "2": 613},
    "checksum": 2868613022,
}

lsns = st.integers(1, 2**63 - 1)
beginnings = st.builds(
    OffsetEntry,
    leader=st.text(min_size=1, max_size=5),
    file=st.builds("{:020d}.{}".format, st.integers(0, 10**12), st.sampled_from(["xlog", "snap"])),
    position=st.just(0),
    vclock=st.dictionaries(st.integers(1, 31), lsns, max_size=4),
    snapshot_vclock=st.none() | st.dictionaries(st.integers(0, 31), lsns, max_size=4),
)
entries = beginnings | st.builds(
    replace, beginnings, position=st.integers(1, 2**63 - 1), checksum=st.integers(0, 2**32 - 1)
)
restarts = st.builds(replace, beginnings, is_restart=st.just(True))
offsets = st.dictionaries(st.uuids().map(str), entries | restarts, max_size=4)


def shuffled(value: Any, seed: int) -> Any:
    """Return the same JSON with the keys of all objects in another order."""
    if not isinstance(value, dict):
        return value
    keys = list(value)
    random.Random(seed).shuffle(keys)
    return {key: shuffled(value[key], seed + 1) for key in keys}


@given(offsets)
def test_what_is_written_is_read_back(offset: dict[str, OffsetEntry]) -> None:
    assert from_text(to_text(offset)) == offset


@given(offsets, st.integers())
def test_the_order_of_keys_never_shows_in_the_text(offset: dict[str, OffsetEntry], seed: int) -> None:
    read = from_document(shuffled(to_document(offset), seed))
    assert to_text(read) == to_text(offset)


@given(offsets)
def test_sparks_own_text_is_the_canonical_one(offset: dict[str, OffsetEntry]) -> None:
    # Spark's runner writes json.dumps of the returned dict, and gives json.loads of it back.
    assert json.dumps(to_document(from_document(json.loads(to_text(offset))))) == to_text(offset)


@given(offsets, offsets)
def test_two_offsets_have_two_texts(one: dict[str, OffsetEntry], other: dict[str, OffsetEntry]) -> None:
    assert (to_text(one) == to_text(other)) == (one == other)


def test_the_text_is_stable() -> None:
    offset = {
        B: OffsetEntry("b1", "1.xlog", 0, {}),
        A: OffsetEntry("a1", "2.snap", 7, {10: 1, 2: 3}, {0: 4, 1: 5}, checksum=9),
    }
    assert to_text(offset) == (
        '{"replicasets": {"'
        + A
        + '": {"checksum": 9, "file": "2.snap", "leader": "a1", "position": 7, "since": {"0": 4, "1": 5}, '
        '"vclock": {"2": 3, "10": 1}}, "'
        + B
        + '": {"file": "1.xlog", "leader": "b1", "position": 0, "vclock": {}}}, '
        '"version": 1}'
    )


def document(**changed: Any) -> dict[str, Any]:
    entry = {key: value for key, value in (GOOD | changed).items() if value is not ...}
    return {"replicasets": {A: entry}, "version": 1}


def test_a_good_document_is_read() -> None:
    assert from_document(document())[A] == OffsetEntry(
        "a1", "00000000000000001344.xlog", 1205, {1: 729, 2: 613}, checksum=2868613022
    )


@pytest.mark.parametrize(
    "wrong",
    [
        document(leader=...),
        document(leader=""),
        document(leader=7),
        document(file="x/00000000000000001344.xlog"),
        document(file=""),
        document(done=False),
        document(file=None),
        document(position=-1),
        document(position=True),
        document(position=1.5),
        document(position="7"),
        document(position=0),
        document(checksum=...),
        document(checksum=-1),
        document(checksum=2**32),
        document(checksum=True),
        document(checksum="7"),
        document(vclock={"0": 7}),
        document(vclock={"1": 0}),
        document(vclock=[]),
        document(since={"32": 1}),
        document(since=None),
        document(restart=False, position=0, checksum=...),
        document(restart=True, position=7),
        document(extra=1),
        {"replicasets": {A.upper(): GOOD}, "version": 1},
        {"replicasets": {"a": GOOD}, "version": 1},
        {"replicasets": {A: [GOOD]}, "version": 1},
        {"replicasets": [], "version": 1},
        {"replicasets": {}, "version": 2},
        {"replicasets": {}, "version": True},
        {"replicasets": {}},
        {"replicasets": {}, "version": 1, "more": 1},
        [],
        None,
    ],
)
def test_anything_else_is_refused(wrong: object) -> None:
    with pytest.raises(OffsetError, match="delete the checkpoint"):
        from_document(wrong)


@pytest.mark.parametrize("text", ["", "{", "7", '{"version": NaN, "replicasets": {}}', "[" * 100_000])
def test_a_text_that_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(OffsetError):
        from_text(text)


def test_a_repeated_key_is_refused() -> None:
    with pytest.raises(OffsetError, match="twice"):
        from_text('{"version": 1, "replicasets": {}, "version": 1}')


AT = {"end": 90, "label": "p", "lsns": {"1": 7}, "rows": 2, "state": "waiting", "time": 5}


def with_instant(instant: object) -> dict[str, object]:
    one = {"checksum": 7, "file": "1.xlog", "instant": instant, "leader": "a", "position": 9, "vclock": {}}
    return {"replicasets": {"aaaaaaaa-0000-4000-8000-000000000000": one}, "version": 1}


def test_an_instant_survives_its_text() -> None:
    document = with_instant(AT)
    offset = from_document(document)
    assert to_document(offset) == document
    assert from_text(to_text(offset)) == offset


@pytest.mark.parametrize(
    "change",
    [
        {"label": 3},
        {"state": "gone"},
        {"rows": -1},
        {"time": True},
        {"end": None},
        {"lsns": {"1": -1}},
        {"x": 1},
    ],
)
def test_a_malformed_instant_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(OffsetError):
        from_document(with_instant(AT | change))
