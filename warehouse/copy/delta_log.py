"""Plans how a target's log of a table becomes the source's log up to one version, by the names of its files. Pure.

From Delta's protocol, "Delta Log Entries", "Checkpoints", "Log Compaction Files", "Version Checksum File":

    _delta_log/
      00000000000000000042.json                                    the commit of version 42
      00000000000000000042.checkpoint.parquet                      all state at 42, in one file
      00000000000000000042.checkpoint.0000000001.0000000003.parquet   or part 1 of 3
      00000000000000000042.checkpoint.<uuid>.parquet|json          or with sidecars
      _sidecars/<uuid>.parquet
      00000000000000000040.00000000000000000042.compacted.json     the commits of 40 to 42 in one
      00000000000000000042.crc                                     counts and sums at 42
      _last_checkpoint                                             a hint: where the newest checkpoint is

Commits are compared by content, since after a split both sides have different commits with the same number. If both
sides have the same commit, all commits before it are the same, too: each is made on top of the one before, and reaches
another location only by a copy, together with those before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

LOG = "_delta_log"
SIDECARS = "_sidecars"
LAST_CHECKPOINT = "_last_checkpoint"

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint\.(?:parquet|\d{10}\.\d{10}\.parquet|[0-9a-fA-F-]{36}\.(?:parquet|json))"
)
_COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")
_SUM = re.compile(r"(\d{20})\.crc")


@dataclass(frozen=True, order=True)
class DeltaLogFile:
    """One file of a table's log.

    Parameters
    ----------
    version : int
        The last version that the file describes.
    rank : int
        Order within a version: 0 is the commit, 1 a checkpoint, then a compacted log and a checksum.
    name : str

    """

    version: int
    rank: int
    name: str

    @property
    def is_commit(self) -> bool:
        """Whether the file is a commit."""
        return self.rank == 0

    @property
    def is_checkpoint(self) -> bool:
        """Whether the file is a checkpoint, or a part of one."""
        return self.rank == 1


def log_file(name: str) -> DeltaLogFile | None:
    """Return a file of `_delta_log` by its name; None if the name has no version."""
    for rank, pattern in enumerate((_COMMIT, _CHECKPOINT, _COMPACTED, _SUM)):
        match = pattern.fullmatch(name)
        if match:
            return DeltaLogFile(int(match[1]), rank, name)
    return None


def log_files(names: Iterable[str]) -> list[DeltaLogFile]:
    """Return the files of a table's log among these names, in order of their versions."""
    return sorted(found for found in map(log_file, names) if found is not None)


HasSameContent = Callable[[str], bool]
"""Returns whether the log file with this name has the same bytes on both sides."""


@dataclass(frozen=True)
class LogPlan:
    """The changes of one log, in this order.

    Parameters
    ----------
    truncate : tuple of DeltaLogFile
        Files to remove from the target first: from the first commit on that differs from the source's; the newest
        first.
    copy : tuple of DeltaLogFile
        Files to copy from the source, the oldest first.
    remove : tuple of DeltaLogFile
        Files to remove from the target at the end, because the source has removed them; the oldest first.

    """

    truncate: tuple[DeltaLogFile, ...] = ()
    copy: tuple[DeltaLogFile, ...] = ()
    remove: tuple[DeltaLogFile, ...] = ()


def plan_log(
    source: Mapping[str, int],
    target: Mapping[str, int],
    version: int,
    has_same_content: HasSameContent,
    *,
    check_all: bool,
) -> LogPlan:
    """Plan the changes of one log.

    Parameters
    ----------
    source, target : mapping of str to int
        Files of `_delta_log`: name to size in bytes.
    version : int
        The target's version after the changes.
    has_same_content : callable
        Compares a file that both sides have.
    check_all : bool
        Whether to compare the content of every commit, and not only from the newest one back to the first equal one.

    """
    wanted = [file for file in log_files(source) if file.version <= version]
    target_files = log_files(target)
    sizes_differ = {f.name for f in wanted if f.name in target and source[f.name] != target[f.name]}
    common = [f for f in wanted if f.name in target and f.name not in sizes_differ]
    differ = sizes_differ | _different(common, has_same_content, check_all=check_all)
    commits = [f.version for f in wanted if f.is_commit and f.name in differ]
    first = min(commits, default=version + 1)
    truncate = [f for f in target_files if f.version >= min(first, version + 1)]
    kept = {f.name for f in target_files} - {f.name for f in truncate}
    copy = [f for f in wanted if f.name not in kept or f.name in differ]
    names = {f.name for f in wanted}
    remove = [f for f in target_files if f.name in kept and f.name not in names]
    return LogPlan(tuple(truncate[::-1]), tuple(copy), tuple(remove))


def _different(
    common: Sequence[DeltaLogFile], has_same_content: HasSameContent, *, check_all: bool
) -> set[str]:
    """Return the names of those common files that do not have the same bytes on both sides."""
    if check_all:
        return {f.name for f in common if not has_same_content(f.name)}
    found = set()
    for file in reversed([f for f in common if f.is_commit]):
        if has_same_content(file.name):
            break
        found.add(file.name)
    # Checkpoints and sums do not follow from one another: each is compared.
    found |= {f.name for f in common if not f.is_commit and not has_same_content(f.name)}
    return found


def is_readable(names: Mapping[str, int], version: int) -> bool:
    """Whether a log's files suffice to read a version: all commits up to it, from a checkpoint or the first one on."""
    files = [file for file in log_files(names) if file.version <= version]
    commits = {file.version for file in files if file.is_commit}
    start = max((file.version for file in files if file.is_checkpoint), default=-1)
    return commits.issuperset(range(start + 1, version + 1)) and (start >= 0 or 0 in commits)
