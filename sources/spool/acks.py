"""What readers of a spool have passed, told by a file each: `<spool>/acks/<reader>.json`.

    {"vclock": {"1": 5, "2": 7}}

Whoever reads a spool writes its own file, in one step, when it will not ask for older rows again: the job that fills
a warehouse after an epoch, the relay for each of its subscribers. Nobody reads another program's checkpoints.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import SpoolError
from sources.xlog.vclock import vclock_of

FOLDER = "acks"
LOCK = "lock"
"""The file that the daemon locks; Tarantool's own directories have none."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")


@dataclass(frozen=True)
class Ack:
    """What one reader has passed.

    Parameters
    ----------
    reader : str
    vclock : mapping
    modified : float
        When it said so last, seconds since 1970 UTC.

    """

    reader: str
    vclock: Mapping[int, int]
    modified: float


def is_spool(directory: Path) -> bool:
    """Whether a directory is a spool: a daemon writes it, or has written it."""
    return (directory / LOCK).is_file()


def write_ack(spool: Path, reader: str, vclock: Mapping[int, int]) -> None:
    """Tell that a reader has passed a vclock.

    Raises
    ------
    ValueError
        The reader's name is none of a file.

    """
    if not _NAME.fullmatch(reader):
        raise ValueError(f"{reader!r} is no reader's name; allowed: letters, digits, _ . -, up to 80")
    folder = spool / FOLDER
    folder.mkdir(exist_ok=True)
    made = folder / f".{reader}.{os.getpid()}"
    made.write_text(json.dumps({"vclock": {str(i): n for i, n in sorted(vclock.items()) if i}}) + "\n")
    made.rename(folder / f"{reader}.json")


def read_acks(spool: Path) -> dict[str, Ack]:
    """Return what readers have passed, by name.

    Raises
    ------
    SpoolError
        A file is not one of these.

    """
    acks = {}
    for path in sorted((spool / FOLDER).glob("[!.]*.json")):
        try:
            vclock = vclock_of(json.loads(path.read_text())["vclock"])
            acks[path.stem] = Ack(path.stem, vclock, path.stat().st_mtime)
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise SpoolError(
                f"not an acknowledgement: {error}", file=str(path), advice="remove it, if its reader is gone"
            ) from error
    return acks
