"""The value of a RID, five ULIDs and five flags, and its text form.

    incoming:head:old1:old2:base:consistency:outdated:primary:crashed_primary:file_lock

    00000000000000000000000000:01DT3V6WF6K5K12JBV8B563TXP:01DT3TREEM05JE0G8NFRACKJ3Y:01DT3TPFFQV48H3D51300DH53S:\
01DT3P4BTHN2T3QZTR9V78CPV5:1:0:0:0:3

The simplified text shows only the ten timestamp characters of each ULID; it is for people and cannot be parsed
(two generations of one millisecond look alike). One value has one text: ULIDs are upper case.
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

from ulid import ULID

from schemas.errors import RidError

EMPTY_ULID = ULID.from_int(0)
"""The ULID of a field that is not set yet."""

TIMESTAMP_CHARACTERS = 10

_TEXT_FORM = "incoming:head:old1:old2:base:consistency:outdated:primary:crashed_primary:file_lock"


class FileLock(IntEnum):
    """The state of the warehouse's writer lock.

    `UNKNOWN`: the lock was never taken. `UNLOCKED`: it is free. `ALLOW_READ`: a writer has the lock, and the tables can
    be read. `LOCKED`: a copy into this node has the lock and replaces the data, so the tables are not to be read.
    """

    UNKNOWN = 0
    UNLOCKED = 1
    ALLOW_READ = 2
    LOCKED = 3


@dataclass(frozen=True)
class Rid:
    """The RID of one node."""

    incoming: ULID = EMPTY_ULID
    """During a sync into this node, the source's head; else empty."""
    head: ULID = EMPTY_ULID
    """The current generation of the data."""
    old1: ULID = EMPTY_ULID
    old2: ULID = EMPTY_ULID
    """The two generations before `head`, the newer one first."""
    base: ULID = EMPTY_ULID
    """Identifies the network of copies; never rotated."""
    consistency: bool = False
    """Whether the data are complete: false before the first data and during a sync."""
    outdated: bool = False
    """Whether this secondary is known to be behind a primary."""
    primary: bool = False
    """Whether this node may be written."""
    crashed_primary: bool = False
    """Whether a writer of this node crashed while the node was a primary, and no sync has completed since."""
    file_lock: FileLock = FileLock.UNKNOWN

    @property
    def generations(self) -> tuple[ULID, ULID, ULID]:
        """Head, old1 and old2, in the order in which two nodes are compared."""
        return self.head, self.old1, self.old2

    @property
    def simplified(self) -> str:
        """The RID as text, with only the timestamps of the ULIDs."""
        return self._text(TIMESTAMP_CHARACTERS)

    def __str__(self) -> str:
        return self._text(None)

    def _text(self, ulid_characters: int | None) -> str:
        ulids = [str(getattr(self, name))[:ulid_characters] for name in ULID_FIELDS]
        return ":".join([*ulids, *(str(int(getattr(self, name))) for name in FLAG_FIELDS)])


ULID_FIELDS = tuple(field.name for field in fields(Rid))[:5]
FLAG_FIELDS = tuple(field.name for field in fields(Rid))[5:]


def parse_rid(text: str) -> Rid:
    """Parse the text of a RID.

    Raises:
        RidError: The text is not a full RID; fields `rid` and `part` name what is wrong.
    """
    parts = text.split(":")
    if len(parts) != len(ULID_FIELDS) + len(FLAG_FIELDS):
        raise RidError(
            f"a RID has 10 parts, this has {len(parts)}", rid=text, advice=f"give all of {_TEXT_FORM}"
        )
    named: dict[str, Any] = {
        name: _parse_ulid(name, part, text) for name, part in zip(ULID_FIELDS, parts[:5], strict=True)
    }
    named |= {
        name: _parse_flag(name, part, text) for name, part in zip(FLAG_FIELDS[:-1], parts[5:-1], strict=True)
    }
    return Rid(**named, file_lock=_parse_file_lock(parts[-1], text))


def _parse_ulid(name: str, text: str, rid: str) -> ULID:
    try:
        value = ULID.from_str(text)
        if str(value) == text:
            return value
    except ValueError:
        pass
    simplified = len(text) == TIMESTAMP_CHARACTERS
    advice = (
        "give the RID in full, not simplified" if simplified else "a ULID is 26 of 0-9 and A-Z but I, L, O, U"
    )
    raise RidError(f"{text!r} is not a ULID", part=name, rid=rid, advice=advice)


def _parse_flag(name: str, text: str, rid: str) -> bool:
    if text not in ("0", "1"):
        raise RidError(f"{text!r} is not a flag", part=name, rid=rid, advice="a flag is 0 or 1")
    return text == "1"


def _parse_file_lock(text: str, rid: str) -> FileLock:
    if text not in ("0", "1", "2", "3"):
        raise RidError(
            f"{text!r} is not a state of a lock", part="file_lock", rid=rid, advice="it is 0, 1, 2 or 3"
        )
    return FileLock(int(text))


def ulid_after(previous: ULID, new_ulid: ULID) -> ULID:
    """Return `new_ulid` or, if the clock went back, the ULID after `previous`: the ULIDs of a node ascend."""
    return new_ulid if new_ulid > previous else ULID.from_int(int(previous) + 1)


def describe_flags(rid: Rid) -> str:
    """Return a RID's flags in words."""
    if rid == Rid():
        return "no RID yet; the first job that writes it makes it a primary"
    words = ["primary" if rid.primary else "secondary", "consistent" if rid.consistency else "not consistent"]
    words += ["outdated"] * rid.outdated + ["crashed as a primary"] * rid.crashed_primary
    words += [f"a sync of {rid.incoming} has not ended"] * (rid.incoming != EMPTY_ULID)
    locks = {
        FileLock.UNKNOWN: "its lock was never taken",
        FileLock.UNLOCKED: "unlocked",
        FileLock.ALLOW_READ: "locked by a writer, or left so by a killed one; it can be read",
        FileLock.LOCKED: "locked by a copy into it, or left so by a killed one; not to be read",
    }
    return ", ".join([*words, locks[rid.file_lock]])
