"""Reads and writes the acknowledgements of a spool's readers: up to its vclock, a reader no longer needs the rows.

Each reader has its own file `<spool>/acks/<reader>.json` and replaces it atomically:

    {"vclock": {"1": 5, "2": 7}}

The job that fills a warehouse acknowledges after each epoch; a relay acknowledges for its subscribers. The daemon reads
these files before it removes logs, so it need not know the checkpoints of other programs.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import AggregatorError
from sources.spool.options import SpoolRetention
from sources.xlog.format.vclock import vclock_of
from sources.xlog.format.writer import sync_directory, write_all

ACKS_FOLDER = "acks"
SUBSCRIBER_PREFIX = "relay-"
"""Prefix of the reader's name under which a relay acknowledges for a subscriber; the subscriber's uuid follows."""
ACK_MAX_BYTES = 1 << 14
"""Longest accepted file of an acknowledgement; 31 ids and lsns take a tenth of it."""
LOCK_FILE = "lock"
"""Name of the file that the daemon locks; a log directory of Tarantool has no such file."""
ASKED_SNAPSHOT = "snapshot-asked"
"""Name of the file in the folder `acks` by which a reader asks the daemon for a new snapshot."""
_READER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")


@dataclass(frozen=True)
class ReaderAck:
    """The acknowledgement of one reader, which no longer needs the rows up to a vclock."""

    reader: str
    """Name of the reader: of a job, or `relay-<uuid>` for a subscriber of a relay."""
    vclock: Mapping[int, int]
    modified_at: float
    """Time of the reader's last acknowledgement, seconds since 1970 UTC."""
    error: str | None = None
    """Why the file cannot be read or is not valid, and the vclock is empty; None for a valid acknowledgement."""


def is_spool(directory: Path) -> bool:
    """Return whether a directory is a spool, because a daemon writes it or has written it."""
    return (directory / LOCK_FILE).is_file()


def ask_for_snapshot(spool: Path) -> None:
    """Ask the daemon for a new snapshot, in addition to the logs that it writes."""
    folder = spool / ACKS_FOLDER
    folder.mkdir(exist_ok=True)
    (folder / ASKED_SNAPSHOT).touch()


def is_snapshot_asked(spool: Path) -> bool:
    """Return whether a reader asks for a new snapshot."""
    return (spool / ACKS_FOLDER / ASKED_SNAPSHOT).exists()


def answer_snapshot(spool: Path) -> None:
    """Record that the snapshot that was asked for is there."""
    (spool / ACKS_FOLDER / ASKED_SNAPSHOT).unlink(missing_ok=True)


def write_ack(spool: Path, reader: str, vclock: Mapping[int, int]) -> None:
    """Store that a reader no longer needs the rows up to a vclock; the file is durable on return.

    Raises:
        ValueError: The reader's name cannot be a file name.
    """
    if not _READER_NAME.fullmatch(reader):
        raise ValueError(f"{reader!r} is not a reader's name; allowed: letters, digits, _ . -, up to 80")
    folder = spool / ACKS_FOLDER
    folder.mkdir(exist_ok=True)
    temporary = folder / f".{reader}.{os.getpid()}"
    text = json.dumps({"vclock": {str(i): n for i, n in sorted(vclock.items()) if i}}) + "\n"
    try:
        _write_durably(temporary, text.encode())
        temporary.rename(folder / f"{reader}.json")
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(folder)


def renew_ack(spool: Path, reader: str) -> bool:
    """Set the time of a reader's acknowledgement to now, so that it does not expire; return False if there is none."""
    try:
        os.utime(spool / ACKS_FOLDER / f"{reader}.json")
    except FileNotFoundError:
        return False
    return True


def _write_durably(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        write_all(file, data)
        os.fsync(file)
    finally:
        os.close(file)


def read_acks(spool: Path) -> dict[str, ReaderAck]:
    """Return all acknowledgements, by the reader's name; for a file that cannot be read, `error` is set."""
    acks = {}
    for path in sorted((spool / ACKS_FOLDER).glob("[!.]*.json")):
        modified_at = time.time()  # if even this is unreadable, the acknowledgement does not expire
        try:
            modified_at = path.stat().st_mtime
            acks[path.stem] = _read_ack(path, modified_at)
        except FileNotFoundError:
            continue
        except OSError as error:
            acks[path.stem] = ReaderAck(path.stem, {}, modified_at, str(error))
    return acks


def remove_expired_acks(spool: Path, retention: SpoolRetention, now: float) -> dict[str, ReaderAck]:
    """Remove expired acknowledgements of a relay's subscribers, and return the others by the reader's name.

    Each new subscriber has a new uuid and so a file of its own: their number would grow without limit.
    """
    acks = read_acks(spool)
    expired = {
        name
        for name, ack in acks.items()
        if name.startswith(SUBSCRIBER_PREFIX)
        and name not in retention.required_readers
        and now - ack.modified_at >= retention.reader_expiry_seconds
    }
    for name in expired:
        (spool / ACKS_FOLDER / f"{name}.json").unlink(missing_ok=True)
    return {name: ack for name, ack in acks.items() if name not in expired}


def acknowledged_subscribers(spool: Path) -> set[str]:
    """Return the uuids of a relay's subscribers whose acknowledgements are stored in a spool."""
    return {
        path.stem.removeprefix(SUBSCRIBER_PREFIX)
        for path in (spool / ACKS_FOLDER).glob(f"{SUBSCRIBER_PREFIX}*.json")
    }


def _read_ack(path: Path, modified_at: float) -> ReaderAck:
    try:
        with path.open("rb") as file:
            text = file.read(ACK_MAX_BYTES + 1)
        if len(text) > ACK_MAX_BYTES:
            raise ValueError(f"more than {ACK_MAX_BYTES} bytes")
        return ReaderAck(path.stem, vclock_of(json.loads(text)["vclock"]), modified_at)
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError, AggregatorError) as error:
        return ReaderAck(
            path.stem, {}, modified_at, f"not an acknowledgement: {type(error).__name__}: {error}"
        )
