"""Checks the options of `format("xlog")` before anything is opened; unknown ones are refused.

Spark passes options as text, with names in any case. `XlogOptions` explains each option. The functions that parse a
text raise `ValueError` with the reason, to which `_parsed_option` adds the option's name.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from schemas.errors import ConfigurationError, OffsetError
from sources.xlog.directory.offset import OffsetEntry, from_text
from sources.xlog.directory.source import Source
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.damage import Mode
from sources.xlog.format.vclock import Vclock, vclock_of

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class MarkerSpace:
    """A space whose rows mark instants."""

    space: str
    label_field: str | int | None = None
    """Name of the field that has the label, or its number, from 1 on; None for the space `_recovery_point`."""


@dataclass(frozen=True)
class XlogOptions:
    """The checked options of a reader."""

    sources: tuple[Source, ...]
    """From option `sources` (JSON list of {name, path, replicaset?, origins?}), `path` or `paths` (a list, as
    `load([...])` gives it). `path` and `paths` may be globs (`sources.xlog.directory.paths`); each path and each match
    is read by itself, as a source of its own: a directory in the order of its logs, a file as a whole, whatever its
    type and name."""
    with_replicaset: bool = False
    """Whether rows have the columns `REPLICASET_FIELDS`. They do if the option `sources` is given."""
    start_from: str = "logs"
    """`snapshot` reads the newest complete snapshot and then the logs after it. `history` reads the oldest snapshot
    that the logs continue, and then these logs. `logs` reads from the first log, without a snapshot.
    `includeSnapshot=true` means `snapshot`, `includeSnapshot=false` means `logs`. Default: logs. A path whose directory
    has snapshots and no log begins with the newest complete snapshot. One file is read from its beginning."""
    start_vclock: Mapping[str, Vclock] = dataclasses.field(default_factory=dict)
    """`startVclock`: by replicaset uuid, a vclock; the stream begins in the newest log whose header VClock is at most
    this vclock."""
    vclock_before_gap: Mapping[str, Vclock] = dataclasses.field(default_factory=dict)
    """`heldVclock`: by uuid of a replicaset whose rows wait because of a gap, the vclock before the gap. A new leader
    begins at or before this vclock, so that its log can supply the missing rows."""
    start_offset: Mapping[str, OffsetEntry] | None = None
    end_offset: Mapping[str, OffsetEntry] | None = None
    """`startOffset`, `endOffset`: texts of offsets that bound a batch read."""
    from_vclock: Vclock | None = None
    to_vclock: Vclock | None = None
    """`fromVclock` (exclusive), `toVclock` (inclusive). A missing component is 0. Only for batch reads of one path. The
    rows of a snapshot have no lsn, so they are always read."""
    from_timestamp: int | None = None
    to_timestamp: int | None = None
    """`fromTimestamp` (inclusive), `toTimestamp` (exclusive), microseconds since 1970. Only for batch reads. The rows
    of a snapshot have no time of their own, so they are always read."""
    space_ids: frozenset[int] | None = None
    """`spaces`: only rows of these space ids."""
    origin_uuids: frozenset[str] = frozenset()
    """`origins`: only rows of these instance uuids; a source's own list overrides it."""
    max_bytes_per_trigger: int | None = None
    """`maxBytesPerTrigger`: maximum bytes of log files that a micro-batch reads, rounded up to complete blocks."""
    split_bytes: int = 32 * MEBIBYTE
    """`splitBytes`: maximum bytes of log files that one task reads, rounded up to complete blocks. Default 32m."""
    min_partitions: int = 1
    """`minPartitions`: tasks are made smaller, but not below 1m, until there are at least so many. Default 1."""
    mode: Mode = Mode.FAILFAST
    """What to do about damage: FAILFAST, DROPMALFORMED or PERMISSIVE."""
    on_gap: str = "fail"
    """`gaps`: if rows are missing between two files, `fail` stops with `XlogGapError`; `report` names the gap in the
    segment after it (`Segment.gap`) and continues."""
    on_source_error: str = "fail"
    """`on_source_error` (spelled like the key of the configuration): if a source cannot be read, `fail` stops; `skip`
    logs a warning and continues without it."""
    max_lag_seconds: float = 60.0
    """`maxLag`: if the leader's last write is by more than this many seconds older than that of another member, this
    member becomes the leader. Default 60."""
    max_block_bytes: int = BLOCK_LIMIT
    """`maxBlockBytes`: maximum length of a block, and so of a transaction, that is read; it applies to the block in the
    file and to the decompressed block. A task has one block in memory at a time. Default 1g."""
    marker_spaces: tuple[MarkerSpace, ...] = ()
    """`instants`: a JSON list of {space, label?}, the spaces whose rows mark instants at which batches end."""
    instant_wait_seconds: float = 600.0
    """`instantWait`: seconds that a replicaset waits at an instant for the others. Default 600."""

    @property
    def batch_only_options(self) -> list[str]:
        """Names of the given options that only a batch read accepts."""
        return [name for name, field in _FIELD_BY_BATCH_OPTION.items() if getattr(self, field) is not None]


_SIZE_PATTERN = re.compile(r"(\d+)\s*([kmgt]?)b?\Z", re.IGNORECASE)
_POWER_OF_1024 = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def bytes_of(text: str) -> int:
    """Return the number of bytes, at least 1, of a size as Spark writes it: `64m`, `1g`, `500k` or `1048576`."""
    match = _SIZE_PATTERN.match(text.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not a size like 64m")
    return int(match[1]) << 10 * _POWER_OF_1024[match[2].lower()]


def count_of(text: str) -> int:
    """Return the integer that the text names, at least 1."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ValueError(f"{text!r} is not a number of 1 or more")
    return int(text)


def boolean_of(text: str) -> bool:
    """Return the boolean of the text `true` or `false`, in any case."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def microseconds_of(text: str) -> int:
    """Return microseconds since 1970 for an ISO 8601 time (in UTC if it names no zone), or for seconds since 1970."""
    if re.fullmatch(r"\d+(\.\d{1,6})?", text):
        whole, _, fraction = text.partition(".")
        return int(whole) * 1_000_000 + int(fraction.ljust(6, "0") or 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither an ISO 8601 time nor seconds since 1970") from None
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (zoned - _UNIX_EPOCH) // timedelta(microseconds=1)


def seconds_of(text: str) -> float:
    """Return a number of seconds that is not negative; it may have decimals."""
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ValueError(f"{text!r} is not a number of seconds")
    return float(text)


def items_of(text: str) -> list[str]:
    """Return the items of a JSON list, or of a text with commas between the items."""
    if text.lstrip().startswith("["):
        items = parsed_json(text)
        if not isinstance(items, list):
            raise ValueError(f"{text!r} is not a list")
        return [str(item) for item in items]
    return [item.strip() for item in text.split(",") if item.strip()]


def uuid_of(text: object) -> str:
    """Return a uuid as Tarantool writes it: lower case, with dashes."""
    try:
        return str(UUID(str(text)))
    except ValueError:
        raise ValueError(f"{text!r} is not a uuid") from None


def uuids_of(text: str) -> frozenset[str]:
    """Return the uuids of a list with at least one item (`items_of`)."""
    uuids = frozenset(uuid_of(item) for item in items_of(text))
    if not uuids:
        raise ValueError("the list is empty")
    return uuids


def space_ids_of(text: str) -> frozenset[int]:
    """Return the space ids of a list; names are refused, since a space may have another id in each replicaset."""
    items = items_of(text)
    for item in items:
        if not (item.isascii() and item.isdecimal() and int(item) < 1 << 31):
            raise ValueError(f"{item!r} is not a space id: look a name up in _space (280) of that replicaset")
    if not items:
        raise ValueError("the list is empty")
    return frozenset(int(item) for item in items)


def parsed_json(text: str) -> Any:
    """Return the value of a JSON text."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def vclock_of_text(text: str) -> dict[int, int]:
    """Return the vclock of a JSON text like `{"1": 100, "2": 7}`."""
    return vclock_of(parsed_json(text))


def vclocks_by_replicaset(text: str) -> dict[str, dict[int, int]]:
    """Return {replicaset uuid: vclock} from a JSON text like `{"<replicaset uuid>": {"1": 100}}`."""
    document = parsed_json(text)
    if not isinstance(document, Mapping):
        raise ValueError("not an object {replicaset uuid: {replica id: lsn}}")
    return {uuid_of(uuid): vclock_of(document[uuid]) for uuid in sorted(document)}


_FIELD_BY_BATCH_OPTION = {
    "fromVclock": "from_vclock",
    "toVclock": "to_vclock",
    "fromTimestamp": "from_timestamp",
    "toTimestamp": "to_timestamp",
    "startOffset": "start_offset",
    "endOffset": "end_offset",
}


def _choice_parser(*names: str) -> Callable[[str], str]:
    def choose(text: str) -> str:
        for name in names:
            if text.lower() == name.lower():
                return name
        raise ValueError(f"{text!r} is not one of {', '.join(names)}")

    return choose


def _parsed_mode(text: str) -> Mode:
    return Mode(_choice_parser(*Mode)(text))


_SOURCE_KEYS = {"name", "path", "replicaset", "origins"}


def _parsed_source(number: int, item: object) -> Source:
    if not isinstance(item, Mapping):
        raise ValueError(f"[{number}]: a source is an object {{name, path}}, not {item!r}")
    unknown = sorted(set(item) - _SOURCE_KEYS)
    if unknown:
        raise ValueError(
            f"[{number}]: unknown key {unknown[0]!r}; known are {', '.join(sorted(_SOURCE_KEYS))}"
        )
    for key in ("name", "path"):
        if not isinstance(item.get(key), str) or not item[key]:
            raise ValueError(f"[{number}].{key}: {item.get(key)!r} is not a text")
    origins = item.get("origins") or []
    if not isinstance(origins, list):
        raise ValueError(f"[{number}].origins: {origins!r} is not a list of instance uuids")
    replicaset = item.get("replicaset")
    return Source(
        item["name"],
        item["path"],
        None if replicaset is None else uuid_of(replicaset),
        frozenset(uuid_of(uuid) for uuid in origins),
    )


def _parsed_sources(text: str) -> tuple[Source, ...]:
    items = parsed_json(text)
    if not isinstance(items, list) or not items:
        raise ValueError("not a list of sources [{name, path, replicaset?, origins?}, ...]")
    sources = tuple(_parsed_source(number, item) for number, item in enumerate(items))
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the name {name!r} occurs twice")
    return sources


def _parsed_marker_spaces(text: str) -> tuple[MarkerSpace, ...]:
    items = parsed_json(text)
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise ValueError("not a list of marker spaces [{space, label?}, ...]")
    for item in items:
        if not set(item) <= {"space", "label"} or not isinstance(item.get("space"), str):
            raise ValueError(f"{item!r} is not a marker space {{space, label?}}")
    return tuple(MarkerSpace(item["space"], item.get("label")) for item in items)


OPTION_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "sources": ("sources", _parsed_sources),
    "start": ("start_from", _choice_parser("snapshot", "history", "logs")),
    "includeSnapshot": ("start_from", lambda text: "snapshot" if boolean_of(text) else "logs"),
    "startVclock": ("start_vclock", vclocks_by_replicaset),
    "heldVclock": ("vclock_before_gap", vclocks_by_replicaset),
    "startOffset": ("start_offset", from_text),
    "endOffset": ("end_offset", from_text),
    "fromVclock": ("from_vclock", vclock_of_text),
    "toVclock": ("to_vclock", vclock_of_text),
    "fromTimestamp": ("from_timestamp", microseconds_of),
    "toTimestamp": ("to_timestamp", microseconds_of),
    "spaces": ("space_ids", space_ids_of),
    "origins": ("origin_uuids", uuids_of),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", bytes_of),
    "splitBytes": ("split_bytes", bytes_of),
    "minPartitions": ("min_partitions", count_of),
    "mode": ("mode", _parsed_mode),
    "gaps": ("on_gap", _choice_parser("fail", "report")),
    "on_source_error": ("on_source_error", _choice_parser("fail", "skip")),
    "maxLag": ("max_lag_seconds", seconds_of),
    "maxBlockBytes": ("max_block_bytes", bytes_of),
    "instants": ("marker_spaces", _parsed_marker_spaces),
    "instantWait": ("instant_wait_seconds", seconds_of),
}
"""By the name of an option: the field of `XlogOptions` that it sets, and the function that parses its text."""

_SOURCE_OPTIONS = ("path", "paths", "sources")
OPTION_NAMES = (*OPTION_PARSERS, "path", "paths", "replicaset")


def _with_documented_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their names as documented, with upper and lower case."""
    spelling = {name.lower(): name for name in OPTION_NAMES}
    named = {}
    for name, text in options.items():
        if name.lower() not in spelling:
            known = ", ".join(sorted(OPTION_NAMES, key=str.lower))
            raise ConfigurationError(f"unknown option {name!r}", advice=f"known are {known}")
        named[spelling[name.lower()]] = text
    return named


def _parsed_option(name: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except (ValueError, OffsetError) as error:
        raise ConfigurationError(f"option {name}: {error}", option=name) from error


def _sources_to_read(named: Mapping[str, str]) -> tuple[Source, ...]:
    given = [name for name in _SOURCE_OPTIONS if name in named]
    if len(given) != 1:
        reason = f"{' and '.join(given)} are given together" if given else "nothing to read is named"
        raise ConfigurationError(reason, advice="give load(path), or the option sources")
    if given == ["sources"]:
        if "replicaset" in named:
            raise ConfigurationError("option replicaset is for one path", advice="put it into the source")
        return tuple(_parsed_option("sources", named["sources"], _parsed_sources))
    paths = [named["path"]] if given == ["path"] else _parsed_option("paths", named["paths"], items_of)
    replicaset = _parsed_option("replicaset", named["replicaset"], uuid_of) if "replicaset" in named else None
    if not paths or not all(paths):
        raise ConfigurationError(f"option {given[0]} is empty", advice="give load(path)")
    if replicaset is not None and len(paths) > 1:
        raise ConfigurationError("option replicaset is for one path", advice="give the option sources")
    return tuple(Source(path, path, replicaset) for path in dict.fromkeys(paths))


def parse_options(options: Mapping[str, str]) -> XlogOptions:
    """Return the checked options, whose names are in any case; an error names the option and the reason."""
    named = _with_documented_names(options)
    fields: dict[str, Any] = {}
    for name, (field, parse) in OPTION_PARSERS.items():
        if name in named and field != "sources":
            value = _parsed_option(name, named[name], parse)
            if fields.get(field, value) != value:
                raise ConfigurationError(f"option {name} contradicts another one", option=name)
            fields[field] = value
    if "sources" in named and {"from_vclock", "to_vclock"} & set(fields):
        raise ConfigurationError(
            "options fromVclock and toVclock are of one replicaset, and option sources may name several",
            option="fromVclock" if "from_vclock" in fields else "toVclock",
            advice="read one path, or bound the read with startOffset and endOffset",
        )
    return XlogOptions(sources=_sources_to_read(named), with_replicaset="sources" in named, **fields)
