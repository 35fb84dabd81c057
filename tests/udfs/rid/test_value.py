"""A RID and its text: the document's example, the default, and every kind of invalid text."""

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ulid import ULID

from schemas.errors import RidError
from tests.udfs.rid.rids import EXAMPLE, SIMPLIFIED
from udfs.rid.value import EMPTY_ULID, FLAG_FIELDS, ULID_FIELDS, FileLock, Rid, parse_rid, ulid_after

ULIDS = st.integers(0, (1 << 128) - 1).map(ULID.from_int)
RIDS = st.builds(
    Rid,
    **dict.fromkeys(ULID_FIELDS, ULIDS),
    **dict.fromkeys(FLAG_FIELDS[:-1], st.booleans()),
    file_lock=st.sampled_from(FileLock),
)


def test_the_example_of_the_document() -> None:
    found = parse_rid(EXAMPLE)
    assert found == Rid(
        head=ULID.from_str("01DT3V6WF6K5K12JBV8B563TXP"),
        old1=ULID.from_str("01DT3TREEM05JE0G8NFRACKJ3Y"),
        old2=ULID.from_str("01DT3TPFFQV48H3D51300DH53S"),
        base=ULID.from_str("01DT3P4BTHN2T3QZTR9V78CPV5"),
        consistency=True,
        file_lock=FileLock.LOCKED,
    )
    assert str(found) == EXAMPLE
    assert found.simplified == SIMPLIFIED


def test_the_default_values() -> None:
    assert str(Rid()) == ":".join(["0" * 26] * 5 + ["0"] * 5)
    assert Rid().generations == (EMPTY_ULID, EMPTY_ULID, EMPTY_ULID)


@pytest.mark.parametrize("flag", ["consistency", "outdated", "primary", "crashed_primary"])
def test_each_flag_has_its_position(flag: str) -> None:
    flags = ["consistency", "outdated", "primary", "crashed_primary"]
    given: dict[str, Any] = {flag: True}
    text = str(Rid(**given))
    assert text.split(":")[5:9] == [str(int(name == flag)) for name in flags]


@pytest.mark.parametrize(
    ("state", "digit"), [("UNKNOWN", "0"), ("UNLOCKED", "1"), ("ALLOW_READ", "2"), ("LOCKED", "3")]
)
def test_the_states_of_the_file_lock(state: str, digit: str) -> None:
    assert str(Rid(file_lock=FileLock[state])).split(":")[9] == digit


@settings(deadline=None)
@given(RIDS)
def test_a_text_parses_to_the_same_rid(value: Rid) -> None:
    assert parse_rid(str(value)) == value
    assert pickle.loads(pickle.dumps(value)) == value


@settings(deadline=None)
@given(RIDS, st.integers(0, 139), st.characters())
def test_one_value_has_one_text(value: Rid, index: int, other: str) -> None:
    text = str(value)
    changed = text[:index] + other + text[index + 1 :]
    if is_rid(changed):
        assert str(parse_rid(changed)) == changed
        assert (parse_rid(changed) == value) == (changed == text)


def is_rid(text: str) -> bool:
    try:
        parse_rid(text)
    except RidError:
        return False
    return True


WRONG = [
    ("nothing", "", "10 parts, this has 1", None),
    ("a part too few", EXAMPLE[:-2], "10 parts, this has 9", None),
    ("a part too many", EXAMPLE + ":0", "10 parts, this has 11", None),
    ("simplified", SIMPLIFIED, "'0000000000' is not a ULID", "incoming"),
    ("lower case", EXAMPLE.replace("01DT3V6WF6", "01dt3v6wf6"), "is not a ULID", "head"),
    ("a letter that no ULID has", EXAMPLE.replace("01DT3TREEM", "01DT3TREEU"), "is not a ULID", "old1"),
    ("beyond 128 bits", EXAMPLE.replace("01DT3TPFFQ", "81DT3TPFFQ"), "is not a ULID", "old2"),
    ("too long", EXAMPLE.replace("01DT3P4BTH", "001DT3P4BTH"), "is not a ULID", "base"),
    ("white space", EXAMPLE + "\n", "not a state of a lock", "file_lock"),
    ("a flag of 2", EXAMPLE[:-9] + "2:0:0:0:3", "'2' is not a flag", "consistency"),
    ("an empty flag", EXAMPLE[:-9] + "1:0::0:3", "'' is not a flag", "primary"),
    ("another digit", EXAMPLE[:-9] + "1:0:0:٠:3", "is not a flag", "crashed_primary"),
    ("a lock of 4", EXAMPLE[:-1] + "4", "'4' is not a state of a lock", "file_lock"),
]


@pytest.mark.parametrize(
    ("text", "reason", "part"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_an_invalid_rid_names_its_wrong_part(text: str, reason: str, part: str | None) -> None:
    with pytest.raises(RidError, match=reason) as caught:
        parse_rid(text)
    assert caught.value.fields.get("part") == part
    assert "advice" in caught.value.fields


@settings(deadline=None)
@given(ULIDS.filter(lambda u: int(u) < (1 << 128) - 1), ULIDS)
def test_generations_ascend_even_if_a_clock_goes_back(previous: ULID, fresh: ULID) -> None:
    found = ulid_after(previous, fresh)
    assert found > previous
    assert found == fresh or fresh <= previous
