"""A stream's offset: for each replicaset the leader, its file, and a byte position in the file.

Each position in the logs has exactly one text (its canonical form), so that Spark can compare offsets as text. Keys are
sorted. `position` is the end of a complete block, or 0 if no row of the file has been read. The end of a file whose
successor follows without a gap is written as position 0 of the successor (`sources.xlog.stream.read_ahead` does so). So
an idle stream does not depend on a file that Tarantool may remove.

    {"replicasets": {"<uuid>": {"checksum": 2868613022, "file": "00000000000000001344.xlog", "leader": "a1",
                                "position": 1205, "vclock": {"1": 729, "2": 613}}}, "version": 1}

`checksum`  only if `position` is not 0: CRC-32C of the bytes before it (`sources.xlog.reader.fingerprint`). With
            `vclock` it names what was read: a server may write another history into a file of the same name
`vclock`    the file's header VClock without component 0: it shows where a new leader must begin
`since`     optional; the vclock of the snapshot that the stream began with: rows at or below it are in the snapshot and
            are not read again. An entry with `since` whose `file` is a snapshot is in a generation: this snapshot
            replaces all rows before a gap
`restart`   optional, true: the previous file was removed, and the stream continues here
            (`sources.xlog.stream.failover`)
`done`      optional, true: the file matched a glob and was read to its end marker, so it may be removed

A marker row with one label in every replicaset defines an instant; its position in one log is a point. `instant`, if
present, is the last point that the stream has reached in this replicaset (`sources.xlog.stream.instants`); for its
`state` see `InstantState`. If the point is within a block, `position` is the start of this block and the instant's
`end` is its end; the first `rows` rows of it have been read.

This module has plain data and its strict parser, without I/O. Names of fields may differ from the keys of the JSON.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from schemas.errors import OffsetError
from sources.xlog.format.vclock import Vclock, vclock_of, without_local

FORMAT_VERSION = 1

_FILE_NAME = re.compile(r"[^/]+\Z")
"""A file that is a source by itself may have any name."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_REQUIRED_KEYS = {"leader", "file", "position", "vclock"}
_OPTIONAL_KEYS = {"checksum", "done", "instant", "restart", "since"}
_INSTANT_KEYS = {"end", "label", "lsns", "rows", "state", "time"}
_OFFSET_ADVICE = "delete the checkpoint, or name an offset that this source wrote"


class InstantState(StrEnum):
    """State of a replicaset at its last instant."""

    WAITING = "waiting"
    """The replicaset waits there, because another one has not reached the instant."""
    WHOLE = "whole"
    """All replicasets wait there: the batch that ends here ends at the instant."""
    DONE = "done"
    """The replicaset has been read further, after all replicasets had reached the instant."""
    MISSED = "missed"
    """The replicaset has been read further, although another one had not reached the instant."""


@dataclass(frozen=True)
class Instant:
    """The last point of a sharded cluster that the stream has reached in one replicaset."""

    label: str
    """The label of the marker, which is the same in all replicasets."""
    marker_time: int
    """Timestamp of the marker row in this replicaset's log, microseconds since 1970."""
    marker_lsns: Vclock
    """{replica id: lsn of the last marker that was read}. After a failover earlier markers are read again; they are
    recognized by these lsns."""
    state: InstantState
    """Whether the replicaset still waits at the point, or has been read further."""
    rows_passed: int = 0
    """Number of rows before the point in the block at the entry's position; 0 if the point is between two blocks."""
    block_end: int = 0
    """End of that block, in bytes; 0 if the point is between two blocks."""

    @property
    def is_stream_at_point(self) -> bool:
        """Whether the stream is at the point: it has not been read further."""
        return self.state in (InstantState.WAITING, InstantState.WHOLE)


@dataclass(frozen=True)
class OffsetEntry:
    """One replicaset's entry of an offset: how far its log has been read."""

    leader: str
    """Name of the source whose files are read."""
    file: str
    """Base name of the file."""
    position: int
    """Bytes: the end of a complete block, or 0 if no row of the file has been read."""
    vclock: Vclock
    """The file's header VClock, without component 0 and zeros."""
    snapshot_vclock: Vclock | None = None
    """The vclock, with component 0, of the snapshot that was read. Rows at or below it are left out."""
    is_restart: bool = False
    """Whether the stream restarts here, because the file before was removed. The batch that ends here reads nothing."""
    is_done: bool = False
    """Whether the file matched a glob and was read to its end marker, so that it may be removed."""
    instant: Instant | None = None
    """The last point that the stream has reached."""
    checksum: int | None = None
    """The checksum of the bytes before the position; None at position 0."""

    @property
    def is_snapshot(self) -> bool:
        """Whether the position is inside a snapshot."""
        return self.file.endswith(".snap")


Offset = Mapping[str, OffsetEntry]
"""The entry of each replicaset, by its uuid. Replicasets of removed sources stay."""


def _vclock_json(vclock: Vclock) -> dict[str, int]:
    return {str(id_): vclock[id_] for id_ in sorted(vclock)}


def _instant_json(instant: Instant) -> dict[str, Any]:
    return {
        "end": instant.block_end,
        "label": instant.label,
        "lsns": _vclock_json(instant.marker_lsns),
        "rows": instant.rows_passed,
        "state": str(instant.state),
        "time": instant.marker_time,
    }


def _entry_json(entry: OffsetEntry) -> dict[str, Any]:
    document: dict[str, Any] = {"file": entry.file, "leader": entry.leader, "position": entry.position}
    if entry.is_done:
        document = {"done": True} | document
    if entry.checksum is not None:
        document = {"checksum": entry.checksum} | document
    if entry.instant is not None:
        document["instant"] = _instant_json(entry.instant)
    if entry.snapshot_vclock is not None:
        document["since"] = _vclock_json(entry.snapshot_vclock)
    if entry.is_restart:
        document["restart"] = True
    return document | {"vclock": _vclock_json(entry.vclock)}


def to_document(offset: Offset) -> dict[str, Any]:
    """Return the offset as the JSON document that Spark stores, its keys in the canonical order.

    Spark compares offsets as the text that `json.dumps` makes of this, so the order of keys matters.
    """
    return {
        "replicasets": {uuid: _entry_json(offset[uuid]) for uuid in sorted(offset)},
        "version": FORMAT_VERSION,
    }


def to_text(offset: Offset) -> str:
    """Return the canonical text of an offset, as Spark writes it into its offset log."""
    return json.dumps(to_document(offset))


def _parsed_vclock(value: object, where: str) -> dict[int, int]:
    try:
        return vclock_of(value)
    except ValueError as error:
        raise OffsetError(f"{where}: {error}", advice=_OFFSET_ADVICE) from error


def _require(is_valid: bool, reason: str) -> None:
    if not is_valid:
        raise OffsetError(reason, advice=_OFFSET_ADVICE)


def _parsed_instant(uuid: str, value: object) -> Instant:
    _require(
        isinstance(value, Mapping) and set(value) == _INSTANT_KEYS, f"{uuid}: {value!r} is not an instant"
    )
    fields: Mapping[str, Any] = value  # type: ignore[assignment]  # narrowed by the line above
    numbers = [fields[name] for name in ("end", "rows", "time")]
    sound = all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in numbers)
    _require(sound, f"{uuid}: an instant has the numbers {numbers}")
    _require(isinstance(fields["label"], str), f"{uuid}: {fields['label']!r} is not a label")
    known = [str(state) for state in InstantState]
    _require(fields["state"] in known, f"{uuid}: {fields['state']!r} is not a state of an instant")
    end, rows, moment = numbers
    lsns = _parsed_vclock(fields["lsns"], f"{uuid}: lsns")
    return Instant(fields["label"], moment, lsns, InstantState(fields["state"]), rows, end)


def _parsed_entry(uuid: str, value: object) -> OffsetEntry:
    _require(_UUID.match(uuid) is not None, f"{uuid!r} is not a replicaset's uuid")
    _require(isinstance(value, Mapping), f"{uuid}: an entry is an object, not {value!r}")
    fields: Mapping[str, Any] = value  # type: ignore[assignment]  # narrowed by the line above
    _require(
        _REQUIRED_KEYS <= set(fields) <= _REQUIRED_KEYS | _OPTIONAL_KEYS,
        f"{uuid}: has the keys {sorted(fields)}",
    )
    _require(fields.get("done", True) is True, f"{uuid}: done {fields.get('done')!r} is not true")
    leader, file, position = fields["leader"], fields["file"], fields["position"]
    _require(isinstance(leader, str) and leader != "", f"{uuid}: leader {leader!r} is not a source's name")
    _require(
        isinstance(file, str) and _FILE_NAME.match(file) is not None, f"{uuid}: {file!r} is not a log file"
    )
    sound = isinstance(position, int) and not isinstance(position, bool) and position >= 0
    _require(sound, f"{uuid}: position {position!r} is not a byte position")
    vclock = _parsed_vclock(fields["vclock"], f"{uuid}: vclock")
    _require(vclock == without_local(vclock), f"{uuid}: vclock has a local or an empty component")
    snapshot_vclock = _parsed_vclock(fields["since"], f"{uuid}: since") if "since" in fields else None
    restart = "restart" in fields
    _require(
        not restart or (fields["restart"] is True and position == 0), f"{uuid}: restart is not at position 0"
    )
    checksum = _parsed_checksum(uuid, position, fields.get("checksum"))
    instant = _parsed_instant(uuid, fields["instant"]) if "instant" in fields else None
    return OffsetEntry(
        leader, file, position, vclock, snapshot_vclock, restart, "done" in fields, instant, checksum
    )


def _parsed_checksum(uuid: str, position: int, value: object) -> int | None:
    """Return the checksum of an entry, which all positions but 0 have."""
    if position == 0:
        _require(value is None, f"{uuid}: position 0 has the checksum {value!r}")
        return None
    sound = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32
    _require(sound, f"{uuid}: {value!r} is not the checksum of the bytes before position {position}")
    return int(value)  # type: ignore[call-overload, no-any-return]  # narrowed by the line above


def from_document(document: object) -> dict[str, OffsetEntry]:
    """Parse an offset from its JSON document.

    Raises:
        OffsetError: If `to_document` cannot have made the document (apart from the order of its keys).
    """
    _require(isinstance(document, Mapping), f"an offset is an object, not {document!r}")
    fields: Mapping[str, Any] = document  # type: ignore[assignment]  # narrowed by the line above
    _require(set(fields) == {"replicasets", "version"}, f"has the keys {sorted(map(str, fields))}")
    version = fields["version"]
    _require(
        version == FORMAT_VERSION and not isinstance(version, bool),
        f"offset version {version!r}, known is {FORMAT_VERSION}",
    )
    replicasets = fields["replicasets"]
    _require(isinstance(replicasets, Mapping), f"replicasets is an object, not {replicasets!r}")
    return {str(uuid): _parsed_entry(str(uuid), replicasets[uuid]) for uuid in sorted(replicasets)}


def _refuse_nan_or_infinity(name: str) -> None:
    raise ValueError(f"{name} is not a number of an offset")


def _object_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError(f"a key occurs twice in {[key for key, _ in pairs]}")
    return document


def from_text(text: str) -> dict[str, OffsetEntry]:
    """Parse an offset from its text."""
    try:
        document = json.loads(
            text, object_pairs_hook=_object_with_unique_keys, parse_constant=_refuse_nan_or_infinity
        )
    except (ValueError, RecursionError) as error:
        raise OffsetError(f"not an offset: {error}", advice=_OFFSET_ADVICE) from error
    return from_document(document)
