r"""The text header of a log file: its type, version, instance and vclocks.

    XLOG\n                                        type: XLOG, SNAP, VYLOG, RUN or INDEX
    0.13\n                                        version: 0.12 (Tarantool 1.6) or 0.13
    Version: 2.6.0-0-g47aa4e01e\n                 any number of `key: value` lines
    Instance: aaaaaaaa-0000-4000-8000-0000000000a1\n  `Server` in 0.12
    VClock: {0: 9, 1: 956}\n                      the instance's vclock before the first row
    PrevVClock: {}\n                              the VClock of the file before this one
    \n                                            an empty line ends the header

Source: `xlog_meta_parse` and `xlog_meta_format` in Tarantool's `src/box/xlog.c`, `vclock_from_string` in
`src/lib/vclock/vclock.c`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from schemas.errors import XlogMetaError, XlogMetaIncompleteError
from schemas.iproto import LSN_MAX, VCLOCK_MAX

FILE_TYPES = ("XLOG", "SNAP", "VYLOG", "RUN", "INDEX")
FORMAT_VERSIONS = ("0.12", "0.13")
META_LIMIT = 8192
"""Maximum length of a header, in bytes. Tarantool's own limit is 2 KiB (`XLOG_META_LEN_MAX`)."""

END_OF_META = b"\n\n"

REPLICASET_KEY = "Replicaset"
"""The key of the replicaset's uuid, in files of a spool. Tarantool ignores an unknown key, with a warning (2.6.0)."""

PEER_VERSIONS_KEY = "PeerVersions"
"""The key of {replica id: version of the server that sent its rows}, in logs of a spool whose peers have different
versions. Rows of other replica ids have the version of the key `Version`."""

_TYPES_WITH_VCLOCK = ("XLOG", "SNAP", "VYLOG")
_VERSION_WITHOUT_VCLOCK = "0.12"
"""Files of this version may lack the VClock, as those of 1.6.1 do; Tarantool reads them too."""
_VCLOCK = re.compile(r"\s*\{\s*(?:\d+\s*:\s*\d+\s*(?:,\s*\d+\s*:\s*\d+\s*)*,?\s*)?\}\s*", re.ASCII)
_PEER_VERSION = re.compile(r"(\d+): (\d+\.\d+\.\d+)", re.ASCII)
_PEER_VERSIONS = re.compile(rf"\{{(?:{_PEER_VERSION.pattern}(?:, )?)*\}}", re.ASCII)
_VCLOCK_COMPONENT = re.compile(r"(\d+)\s*:\s*(\d+)", re.ASCII)


@dataclass(frozen=True)
class Meta:
    """The header of one log file."""

    filetype: str
    """One of `FILE_TYPES`."""
    version: str
    """One of `FORMAT_VERSIONS`."""
    instance_uuid: str | None
    """Lower case, from `Instance` or `Server`; None if the file has neither."""
    vclock: Mapping[int, int]
    """{replica id: lsn}; empty if the file has none (`has_vclock`)."""
    prev_vclock: Mapping[int, int] | None = None
    """The VClock of the file before this one; None if the header does not have it."""
    other: Mapping[str, str] = field(default_factory=dict)
    """The values of all other keys (`Version`, and unknown keys), as they are written."""
    length: int = 0
    """Length of the header with its empty line, in bytes, and so the position of the first block. It is 0 if the header
    is damaged, but a lenient mode searches for blocks nevertheless."""
    has_vclock: bool = True
    """Whether the header has a VClock. Files of Tarantool 1.6.1, and RUN and INDEX files, do not."""


DAMAGED_META = Meta("", "", None, {}, has_vclock=False)
"""The header that a lenient mode uses in place of a damaged one, to search for blocks from the first byte on."""


def parse_meta(data: bytes, file: str) -> Meta:
    """Return the header that `data` begins with.

    Args:
        data: The beginning of the file: all of it, or at least `META_LIMIT` bytes.

    Raises:
        XlogMetaIncompleteError: If `data` is valid, but ends before the empty line: the file is still being created.
        XlogMetaError: If the type or version is unknown, or a line, vclock or uuid is malformed.
    """
    end = data.find(END_OF_META, 0, META_LIMIT)
    if end < 0:
        raise _missing_end_error(data, file)
    length = end + len(END_OF_META)
    try:
        lines = data[:end].decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise XlogMetaError("the header is not text", file=file, offset=error.start) from None
    filetype, version = lines[0], lines[1] if len(lines) > 1 else ""
    _check_type(filetype, version, file)
    keys = _parsed_keys(lines, file)
    instance = keys.pop("Instance", None) or keys.pop("Server", None)
    vclock, prev_vclock = keys.pop("VClock", None), keys.pop("PrevVClock", None)
    if vclock is None and filetype in ("XLOG", "SNAP") and version != _VERSION_WITHOUT_VCLOCK:
        raise XlogMetaError("the header has no VClock", file=file, offset=0)
    return Meta(
        filetype=filetype,
        version=version,
        instance_uuid=None if instance is None else _parsed_uuid(instance, file),
        vclock={} if vclock is None else parse_vclock(vclock, file),
        prev_vclock=None if prev_vclock is None else parse_vclock(prev_vclock, file),
        other=keys,
        length=length,
        has_vclock=vclock is not None,
    )


def parse_vclock(text: str, file: str) -> dict[int, int]:
    """Return the vclock of a text like `{0: 9, 1: 956}`, from a header or an option.

    Raises:
        XlogMetaError: If the text is not a vclock, has a replica id twice or one above 31, or has an lsn of more than
            63 bits.
    """
    if _VCLOCK.fullmatch(text) is None:
        raise XlogMetaError(f"not a vclock: {text!r}", file=file, offset=0)
    vclock: dict[int, int] = {}
    for component in _VCLOCK_COMPONENT.finditer(text):
        replica_id, lsn = int(component[1]), int(component[2])
        if replica_id >= VCLOCK_MAX or lsn > LSN_MAX or replica_id in vclock:
            raise XlogMetaError(f"not a vclock: {text!r}: at {component[0]!r}", file=file, offset=0)
        vclock[replica_id] = lsn
    return vclock


def format_vclock(vclock: Mapping[int, int]) -> str:
    """Return the text of a vclock as Tarantool writes it: sorted by replica id, without components that are 0."""
    return "{" + ", ".join(f"{i}: {lsn}" for i, lsn in sorted(vclock.items()) if lsn) + "}"


def format_meta(meta: Meta) -> bytes:
    """Return the bytes of a header; `meta.length` is not used.

    Raises:
        XlogMetaError: If a key or a value has a line break.
    """
    values = [*meta.other, *meta.other.values(), meta.instance_uuid or ""]
    if any("\n" in value for value in values):
        raise XlogMetaError("a key or a value of the header has a line break")
    lines = [meta.filetype, meta.version]
    lines += [f"{key}: {value}" for key, value in meta.other.items()]
    if meta.instance_uuid is not None:
        key = "Server" if meta.version == "0.12" else "Instance"
        lines.append(f"{key}: {meta.instance_uuid}")
    if meta.filetype in _TYPES_WITH_VCLOCK and meta.has_vclock:
        lines.append(f"VClock: {format_vclock(meta.vclock)}")
    if meta.prev_vclock is not None:
        lines.append(f"PrevVClock: {format_vclock(meta.prev_vclock)}")
    return "\n".join(lines).encode() + END_OF_META


def format_peer_versions(versions: Mapping[int, str]) -> str:
    """Return {replica id: version} as the text of the header key `PEER_VERSIONS_KEY`."""
    return "{" + ", ".join(f"{i}: {version}" for i, version in sorted(versions.items())) + "}"


def peer_versions(meta: Meta, file: str) -> dict[int, str]:
    """Return {replica id: server version} from a spool's header; empty if the key `Version` holds for all rows.

    Raises:
        XlogMetaError: If the value of the key is malformed.
    """
    text = meta.other.get(PEER_VERSIONS_KEY)
    if text is None:
        return {}
    if _PEER_VERSIONS.fullmatch(text) is None:
        raise XlogMetaError(f"not versions of peers: {text!r}", file=file, offset=0)
    return {int(one[1]): one[2] for one in _PEER_VERSION.finditer(text)}


def _missing_end_error(data: bytes, file: str) -> XlogMetaError:
    """Return the error for bytes without the header's empty line: the header is incomplete, or it is no header."""
    beginnings = [f"{t}\n{v}\n".encode() for t in FILE_TYPES for v in FORMAT_VERSIONS]
    if any(b.startswith(data[: len(b)]) for b in beginnings):
        if len(data) >= META_LIMIT:
            return XlogMetaError(f"no header ends within {META_LIMIT} bytes", file=file, offset=0)
        return XlogMetaIncompleteError("the file ends inside its header", file=file, offset=len(data))
    return XlogMetaError(f"not a log file: it begins with {data[:16]!r}", file=file, offset=0)


def _check_type(filetype: str, version: str, file: str) -> None:
    if filetype not in FILE_TYPES:
        raise XlogMetaError(f"not a log file: it begins with {filetype[:16]!r}", file=file, offset=0)
    if version not in FORMAT_VERSIONS:
        advice = f"this version reads {' and '.join(FORMAT_VERSIONS)}"
        raise XlogMetaError(f"unknown version {version[:16]!r}", file=file, offset=0, advice=advice)


def _parsed_keys(lines: list[str], file: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    offset = sum(len(line.encode()) + 1 for line in lines[:2])
    for line in lines[2:]:
        key, colon, value = line.partition(":")
        if not colon or not key:
            raise XlogMetaError(f"not a `key: value` line: {line[:64]!r}", file=file, offset=offset)
        if key in keys:
            raise XlogMetaError(f"key {key!r} occurs twice", file=file, offset=offset)
        keys[key] = value.strip()
        offset += len(line.encode()) + 1
    return keys


def _parsed_uuid(text: str, file: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise XlogMetaError(f"not an instance uuid: {text!r}", file=file, offset=0) from None
