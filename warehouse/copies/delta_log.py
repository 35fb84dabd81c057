"""Plans which log files of a table to remove and copy, so that the target's log equals the source's. Pure.

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

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

LOG_FOLDER = "_delta_log"
SIDECARS_FOLDER = "_sidecars"
LAST_CHECKPOINT = "_last_checkpoint"

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint\.(?:parquet|\d{10}\.\d{10}\.parquet|[0-9a-fA-F-]{36}\.(?:parquet|json))"
)
_COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")
_VERSION_CHECKSUM = re.compile(r"(\d{20})\.crc")


@dataclass(frozen=True, order=True)
class DeltaLogFile:
    """One file of a table's log."""

    version: int
    """The last version that the file describes."""
    rank: int
    """The kind of file, which orders the files of a version: 0 commit, 1 checkpoint, 2 compacted log, 3 checksum."""
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
    """Parse the name of a file of `_delta_log`; return None if it is none of the kinds of `DeltaLogFile.rank`."""
    for rank, pattern in enumerate((_COMMIT, _CHECKPOINT, _COMPACTED, _VERSION_CHECKSUM)):
        match = pattern.fullmatch(name)
        if match:
            return DeltaLogFile(int(match[1]), rank, name)
    return None


def log_files(names: Iterable[str]) -> list[DeltaLogFile]:
    """Return the log files among these names, in order of their versions; other names are left out."""
    return sorted(found for found in map(log_file, names) if found is not None)


HasSameContent = Callable[[str], bool]
"""Returns whether the log file with this name has the same bytes on both sides."""


@dataclass(frozen=True)
class LogPlan:
    """What to do with the target's log of one table: truncate, copy, then remove."""

    truncate: tuple[DeltaLogFile, ...] = ()
    """Files to remove from the target first, the newest first: all from the first version on whose commit differs from
    the source's.
    """
    copy: tuple[DeltaLogFile, ...] = ()
    """Files to copy from the source, the oldest first."""
    remove: tuple[DeltaLogFile, ...] = ()
    """Files to remove from the target at the end, because the source has removed them; the oldest first."""


def plan_log(
    source: Mapping[str, int],
    target: Mapping[str, int],
    version: int,
    has_same_content: HasSameContent,
    *,
    check_all: bool,
) -> LogPlan:
    """Plan the changes of the target's log of one table.

    Args:
        source, target: Files of `_delta_log`: name to size in bytes.
        check_all: Whether to compare the content of every commit; otherwise from the newest one back to the first equal
            one.
    """
    wanted = [file for file in log_files(source) if file.version <= version]
    target_files = log_files(target)
    sizes_differ = {f.name for f in wanted if f.name in target and source[f.name] != target[f.name]}
    common = [f for f in wanted if f.name in target and f.name not in sizes_differ]
    differ = sizes_differ | _with_other_content(common, has_same_content, check_all=check_all)
    commits = [f.version for f in wanted if f.is_commit and f.name in differ]
    first = min(commits, default=version + 1)
    truncate = [f for f in target_files if f.version >= min(first, version + 1)]
    kept = {f.name for f in target_files} - {f.name for f in truncate}
    copy = [f for f in wanted if f.name not in kept or f.name in differ]
    names = {f.name for f in wanted}
    remove = [f for f in target_files if f.name in kept and f.name not in names]
    return LogPlan(tuple(truncate[::-1]), tuple(copy), tuple(remove))


def _with_other_content(
    common: Sequence[DeltaLogFile], has_same_content: HasSameContent, *, check_all: bool
) -> set[str]:
    """Return the names of the files whose bytes differ; an equal commit implies that earlier ones are equal."""
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
    """Whether log files suffice to read a version: all commits up to it, from a checkpoint or the first commit on."""
    files = [file for file in log_files(names) if file.version <= version]
    commits = {file.version for file in files if file.is_commit}
    start = max((file.version for file in files if file.is_checkpoint), default=-1)
    return commits.issuperset(range(start + 1, version + 1)) and (start >= 0 or 0 in commits)
