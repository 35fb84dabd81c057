"""Versions of one key for tests: few different values, so that equal ones are frequent."""

from hypothesis import strategies as st

from schemas.space import Field, KeyPart, Space
from tests.oracle import mp
from udfs.before_replace.policy import Candidate

SPACE = Space(
    512,
    1,
    "accounts",
    "memtx",
    (
        Field("id", "unsigned"),
        Field("value", "any", is_nullable=True),
        Field("value_at", "unsigned", is_nullable=True),
        Field("note", "any", is_nullable=True),
    ),
    (KeyPart(0, "unsigned"),),
)
OTHER = Space(
    600,
    1,
    "accounts",
    "memtx",
    (Field("id", "unsigned"), Field("value_at", "unsigned"), Field("value", "any")),
    (KeyPart(0, "unsigned"),),
)
"""The same space in another replicaset, with its fields in another order."""

NUMBERS = st.one_of(st.integers(-3, 3), st.floats(-2, 2).map(lambda x: round(x, 1)), st.none())
TIMES = st.one_of(st.none(), st.integers(0, 3))


@st.composite
def candidates(draw: st.DrawFn, *, least: int = 1, deleted: bool = True) -> list[Candidate]:
    """Draw versions of up to four replicasets, in any order."""
    uuids = draw(st.lists(st.sampled_from("abcd"), min_size=least, max_size=4, unique=True))
    found = []
    for uuid in uuids:
        layout = draw(st.integers(0, 1))
        value, at = draw(NUMBERS), draw(st.integers(0, 2))
        fields = [1, value, at, uuid] if layout == 0 else [1, at, value]
        gone = deleted and draw(st.booleans())
        found.append(
            Candidate(
                None if gone else mp.encode(fields),
                uuid,
                draw(st.sampled_from(["", "i", "j"])),
                draw(st.integers(1, 3)),
                draw(TIMES),
                draw(TIMES),
                global_id=1,
                format_index=layout,
            )
        )
    return found
