"""Reads and writes acknowledgements: up to which vclock each reader of a spool no longer needs the rows.

Each reader has its own file `<spool>/acks/<reader>.json` and replaces it atomically:

    {"vclock": {"1": 5, "2": 7}}

The job that fills a warehouse acknowledges after each epoch; a relay acknowledges for its subscribers. So the daemon,
which removes files, need not read other programs' checkpoints.
"""

from __future__ import annotations

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

FOLDER = "acks"
SUBSCRIBER = "relay-"
"""Prefix of the reader's name under which a relay acknowledges for a subscriber; its uuid follows."""
ACK_LIMIT = 1 << 14
"""Longest accepted acknowledgement in bytes; 31 ids and lsns take a tenth of it."""
LOCK = "lock"
"""Name of the file that the daemon locks; a log directory of Tarantool has no such file."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")


@dataclass(frozen=True)
class ReaderAck:
    """The acknowledgement of one reader: it needs no rows up to a vclock.

    Parameters
    ----------
    reader : str
        Name of the reader.
    vclock : mapping
        The acknowledged vclock.
    modified : float
        Time of its last acknowledgement, seconds since 1970 UTC.
    error : str or None
        Why the file is not a valid acknowledgement; the vclock is empty then.

    """

    reader: str
    vclock: Mapping[int, int]
    modified: float
    error: str | None = None


def is_spool(directory: Path) -> bool:
    """Return whether a daemon writes the directory, or has written it."""
    return (directory / LOCK).is_file()


def write_ack(spool: Path, reader: str, vclock: Mapping[int, int]) -> None:
    """Write a reader's acknowledgement of a vclock; the file is durable on return.

    Raises
    ------
    ValueError
        The reader's name cannot be a file name.

    """
    if not _NAME.fullmatch(reader):
        raise ValueError(f"{reader!r} is not a reader's name; allowed: letters, digits, _ . -, up to 80")
    folder = spool / FOLDER
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
    """Renew the time of a reader's acknowledgement, so that it does not expire; return False if there is none."""
    try:
        os.utime(spool / FOLDER / f"{reader}.json")
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
    """Return the acknowledgements by the reader's name; that of an unreadable file has an `error`."""
    acks = {}
    for path in sorted((spool / FOLDER).glob("[!.]*.json")):
        modified = time.time()  # if even this is unreadable, the acknowledgement does not expire
        try:
            modified = path.stat().st_mtime
            acks[path.stem] = _read_ack(path, modified)
        except FileNotFoundError:
            continue
        except OSError as error:
            acks[path.stem] = ReaderAck(path.stem, {}, modified, str(error))
    return acks


def remove_expired(spool: Path, keep: SpoolRetention, now: float) -> dict[str, ReaderAck]:
    """Remove expired acknowledgements of a relay's subscribers, and return the others by the reader's name.

    Each new subscriber has a new uuid and so its own file: the number of files would grow without limit.
    """
    acks = read_acks(spool)
    expired = {
        name
        for name, ack in acks.items()
        if name.startswith(SUBSCRIBER) and name not in keep.readers and now - ack.modified >= keep.forget
    }
    for name in expired:
        (spool / FOLDER / f"{name}.json").unlink(missing_ok=True)
    return {name: ack for name, ack in acks.items() if name not in expired}


def acknowledged_subscribers(spool: Path) -> set[str]:
    """Return the uuids of the relay subscribers whose acknowledgements are stored."""
    return {path.stem.removeprefix(SUBSCRIBER) for path in (spool / FOLDER).glob(f"{SUBSCRIBER}*.json")}


def _read_ack(path: Path, modified: float) -> ReaderAck:
    try:
        with path.open("rb") as file:
            text = file.read(ACK_LIMIT + 1)
        if len(text) > ACK_LIMIT:
            raise ValueError(f"more than {ACK_LIMIT} bytes")
        return ReaderAck(path.stem, vclock_of(json.loads(text)["vclock"]), modified)
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError, AggregatorError) as error:
        return ReaderAck(path.stem, {}, modified, f"not an acknowledgement: {type(error).__name__}: {error}")
