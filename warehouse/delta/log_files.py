"""The names of the files in a table's log, and what is missing among them.

A log has one file for each commit, and checkpoints, after which older commits may be removed. Delta opens a table only
if each commit after the newest checkpoint is there. Not here: what the files contain (`warehouse.delta.table_log`).
"""

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlparse

import pyarrow.fs as pafs

LOG_FOLDER = "_delta_log"

CONDITIONAL_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
"""Schemes of the stores with conditional writes."""

_CHECKPOINT = re.compile(
    r"^(\d{20})\.checkpoint(?:\.([0-9a-f-]{36})|\.(\d{10})\.(\d{10}))?\.(?:parquet|json)$"
)
_COMMIT = re.compile(r"^(\d{20})\.json$")

_MAX_LOOKED_FOR = 200
"""How many commits are looked for one by one; a log with more of them after its checkpoint is listed."""


def commit_path(version: int) -> str:
    """Return the path of a commit, relative to the table's folder."""
    return f"{LOG_FOLDER}/{version:020}.json"


def names_in_log(fs: pafs.FileSystem, log: str) -> list[str]:
    """Return the names of the files in a log's folder; an empty list if there is none."""
    found = fs.get_file_info(pafs.FileSelector(log, allow_not_found=True))
    return [info.base_name for info in found if info.type == pafs.FileType.File]


def commits_of(names: Iterable[str]) -> list[int]:
    """Return the versions whose commits are among the names of files, sorted."""
    return sorted(int(found[1]) for name in names if (found := _COMMIT.match(name)))


def checkpoints_of(names: Iterable[str]) -> dict[int, list[str]]:
    """Return the files of each checkpoint that is whole, by its version."""
    whole: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for name in sorted(names):
        found = _CHECKPOINT.match(name)
        if found is None:
            continue
        if found[3] is None:
            whole[int(found[1])] = [name]
        else:
            parts.setdefault((int(found[1]), int(found[4])), []).append(name)
    for (version, count), files in parts.items():
        if len(files) == count:
            whole.setdefault(version, files)
    return whole


def missing_commit(names: Iterable[str]) -> int | None:
    """Return the first version after the newest checkpoint whose commit is missing before later ones; None if none."""
    files = list(names)
    begin = max(checkpoints_of(files), default=-1)
    following = [version for version in commits_of(files) if version > begin]
    return next((number for number, one in enumerate(following, begin + 1) if number != one), None)


def last_checkpoint(fs: pafs.FileSystem, log: str) -> int | None:
    """Return the version that `_last_checkpoint` names, -1 if there is no such file, None if it cannot be read."""
    try:
        with fs.open_input_stream(f"{log}/_last_checkpoint") as stream:
            return int(json.loads(stream.read())["version"])
    except FileNotFoundError:
        return -1
    except (OSError, ValueError, LookupError, TypeError):
        return None


def ends_at(fs: pafs.FileSystem, table_path: str, uri: str, version: int) -> bool:
    """Return whether a log ends with a version, and has each commit since its checkpoint; False if this is not known.

    Two requests to an object store, and on a local disk one reading and a look for each of these commits.

    Args:
        table_path, uri: The table's folder, for `fs` and for object stores.
    """
    checkpoint = last_checkpoint(fs, f"{table_path}/{LOG_FOLDER}")
    if checkpoint is None or checkpoint > version or version - checkpoint > _MAX_LOOKED_FOR:
        return False
    wanted = list(range(checkpoint + 1, version + 1))
    if urlparse(uri).scheme in CONDITIONAL_SCHEMES:
        return _commits_of_store(uri, checkpoint) == wanted
    *present, following = fs.get_file_info(
        [f"{table_path}/{commit_path(n)}" for n in (*wanted, version, version + 1)]
    )
    is_complete = all(one.type == pafs.FileType.File for one in present)
    return is_complete and bool(following.type == pafs.FileType.NotFound)


def _commits_of_store(uri: str, after: int) -> list[int]:
    """Return the versions after one whose commits an object store has."""
    # Loaded here, since a warehouse on a local disk does without it.
    import obstore
    from obstore.store import from_url

    store: Any = from_url(uri)
    # The name of a checkpoint comes after that of the commit of its version.
    begin = f"{LOG_FOLDER}/{after:020}.json" if after >= 0 else None
    found = obstore.list(store, LOG_FOLDER, offset=begin).collect()
    return commits_of(one["path"].rpartition("/")[2] for one in found)
