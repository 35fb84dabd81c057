"""What must happen to the log of a target's table so that it is the source's up to one version. Pure.

Commits are compared by content: after a split both sides have a different commit of one number. A commit is made on
top of the one before it, and only a copy brings one to another place, with all before it: so below a commit that both
have, both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from warehouse.copy.names import DeltaLogFile, log_files

Same = Callable[[str], bool]
"""Whether a file of this name has the same bytes on both sides."""


@dataclass(frozen=True)
class LogPlan:
    """What is done to one log, in this order.

    Parameters
    ----------
    truncate : tuple of DeltaLogFile
        Files of the target's log that the source does not have, or has with other bytes; the newest first.
    copy : tuple of DeltaLogFile
        Of the source, from the oldest on.
    remove : tuple of DeltaLogFile
        Of the target, at the end, from the oldest on: what the source has given up.

    """

    truncate: tuple[DeltaLogFile, ...] = ()
    copy: tuple[DeltaLogFile, ...] = ()
    remove: tuple[DeltaLogFile, ...] = ()


def plan_log(
    source: Mapping[str, int], target: Mapping[str, int], version: int, same: Same, *, check_all: bool
) -> LogPlan:
    """Plan one log.

    Parameters
    ----------
    source, target : mapping of str to int
        Names in `_delta_log` to sizes, in bytes.
    version : int
        The target's version at the end.
    same : callable
    check_all : bool
        Whether to compare the content of every file, not only of as many commits as are needed.

    """
    wanted = [file for file in log_files(source) if file.version <= version]
    held = log_files(target)
    sizes_differ = {f.name for f in wanted if f.name in target and source[f.name] != target[f.name]}
    common = [f for f in wanted if f.name in target and f.name not in sizes_differ]
    differ = sizes_differ | _different(common, same, check_all=check_all)
    commits = [f.version for f in wanted if f.is_commit and f.name in differ]
    first = min(commits, default=version + 1)
    truncate = [f for f in held if f.version >= min(first, version + 1)]
    kept = {f.name for f in held} - {f.name for f in truncate}
    copy = [f for f in wanted if f.name not in kept or f.name in differ]
    names = {f.name for f in wanted}
    remove = [f for f in held if f.name in kept and f.name not in names]
    return LogPlan(tuple(truncate[::-1]), tuple(copy), tuple(remove))


def _different(common: Sequence[DeltaLogFile], same: Same, *, check_all: bool) -> set[str]:
    """Return the files that have the same name on both sides, but not the same bytes."""
    if check_all:
        return {f.name for f in common if not same(f.name)}
    found = set()
    for file in reversed([f for f in common if f.is_commit]):
        if same(file.name):
            break
        found.add(file.name)
    # What is made from commits has no chain that vouches for it.
    found |= {f.name for f in common if not f.is_commit and not same(f.name)}
    return found


def readable(names: Mapping[str, int], version: int) -> bool:
    """Whether the files of a log open it at a version: a checkpoint up to it, or the first commit, and all after."""
    files = [file for file in log_files(names) if file.version <= version]
    commits = {file.version for file in files if file.is_commit}
    start = max((file.version for file in files if file.is_checkpoint), default=-1)
    return commits.issuperset(range(start + 1, version + 1)) and (start >= 0 or 0 in commits)
