"""RIDs in the document's notation: four characters per ULID, such as 0001, and the flags that matter."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ulid import ULID

from udfs.rid.operations import Node
from udfs.rid.value import ULID_FIELDS, Rid

EXAMPLE = (
    "00000000000000000000000000:01DT3V6WF6K5K12JBV8B563TXP:01DT3TREEM05JE0G8NFRACKJ3Y:"
    "01DT3TPFFQV48H3D51300DH53S:01DT3P4BTHN2T3QZTR9V78CPV5:1:0:0:0:3"
)
SIMPLIFIED = "0000000000:01DT3V6WF6:01DT3TREEM:01DT3TPFFQ:01DT3P4BTH:1:0:0:0:3"


def ulid(number: int) -> ULID:
    """Return a ULID that represents a generation; greater numbers are later."""
    return ULID.from_int(number << 80)


def of(ulids: Sequence[ULID]) -> Rid:
    """Return the RID with these five ULIDs."""
    named: dict[str, Any] = dict(zip(ULID_FIELDS, ulids, strict=True))
    return Rid(**named)


def rid(drawn: str, **flags: Any) -> Rid:
    """Return the RID of a drawing `inco:head:old1:old2:base`."""
    ulids = [ulid(int(part)) for part in drawn.split(":")]
    return replace(of(ulids), **flags)


def node(drawn: str, mark: int | None = None, **flags: Any) -> Node:
    """Return a node with a drawn RID, and its mark by the number of its generation."""
    return Node(rid(drawn, **flags), None if mark is None else ulid(mark))


def drawn(value: Rid | Node) -> str:
    of = value.rid if isinstance(value, Node) else value
    ulids = (of.incoming, *of.generations, of.base)
    return ":".join(f"{int(one) >> 80:04d}" for one in ulids)
