"""Copies one table: plans what the target lacks, copies it, and checks the result.

Data files, and files of their deletion vectors, are copied first, then the log from the oldest commit on, so a version
can be read only with all its files. Before that, commits of a discarded branch are removed from the target's log, the
newest first. The files of a log, by Delta's protocol ("Delta Log Entries", "Checkpoints", "Log Compaction Files"):

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

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError

from schemas.errors import SyncError, WarehouseError
from warehouse.copies import files
from warehouse.delta.deletion_vectors import ABSOLUTE
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import TableFile, active_files, open_footer
from warehouse.delta.vector_files import read_vector

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
    the source's."""
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


@dataclass(frozen=True)
class TableCopyPlan:
    """The plan of one table's copy."""

    table: str
    version: int
    log: LogPlan
    data_files: Mapping[str, int] = field(default_factory=dict)
    """Files of rows and of deletion vectors that the target lacks: path in the table's folder to size in bytes."""
    sidecars: Mapping[str, int] = field(default_factory=dict)
    """Sidecar files of checkpoints that the target lacks: name to size in bytes."""
    source_log_sizes: Mapping[str, int] = field(default_factory=dict)
    """The source's log files: name to size in bytes."""

    @property
    def total_bytes(self) -> int:
        """The total size of all files to copy, in bytes."""
        logs = sum(self.source_log_sizes[file.name] for file in self.log.copy)
        return sum(self.data_files.values()) + sum(self.sidecars.values()) + logs


def plan_table(
    source: WarehouseLocation,
    target: WarehouseLocation,
    table: str,
    version: int,
    *,
    check_all: bool,
    trusts_target: bool = False,
) -> TableCopyPlan:
    """Plan the copy of a table: compare the files of source and target.

    Args:
        check_all: Whether to compare the contents of files that both have, not only their sizes.
        trusts_target: Whether to assume that the target has every file that its log names, and that its checkpoints are
            correct.

    Raises:
        SyncError: If the source cannot be read at that version any more.
    """
    ours, theirs = files.file_sizes(source, table, LOG_FOLDER), files.file_sizes(target, table, LOG_FOLDER)
    if not is_readable(ours, version):
        raise SyncError(
            f"the source's log no longer opens at version {version}",
            table=table,
            advice="let the source write a batch, and sync again",
        )
    same = partial(files.have_same_content, source, target, table)

    def has_same_log_file(name: str) -> bool:
        return (trusts_target and not name.endswith(".json")) or same(LOG_FOLDER, name)

    log = plan_log(ours, theirs, version, has_same_log_file, check_all=check_all)
    if trusts_target and not log.copy and not log.truncate:
        return TableCopyPlan(table, version, log, {}, {}, ours)
    data = _file_sizes(source, table, version)
    if trusts_target and not log.truncate:
        data = _not_in_target(source, target, table, data)
    return TableCopyPlan(
        table,
        version,
        log,
        _missing_or_different(target, table, data, same, check_all=check_all),
        _missing_sidecars(source, target, table),
        ours,
    )


def missing_files(
    source: WarehouseLocation, target: WarehouseLocation, table: str, version: int
) -> dict[str, int]:
    """Return the source's data files that the target lacks or has in another size: path to size in bytes."""
    data = _file_sizes(source, table, version)
    return _missing_or_different(target, table, data, lambda _name: True, check_all=False)


def _not_in_target(
    source: WarehouseLocation, target: WarehouseLocation, table: str, source_files: Mapping[str, int]
) -> dict[str, int]:
    opened = target.open(table)
    named = set() if opened is None else _paths(_table_files(source, table, opened.version()))
    return {path: size for path, size in source_files.items() if path not in named}


def _table_files(location: WarehouseLocation, table: str, version: int) -> frozenset[TableFile]:
    try:
        opened = location.open(table, version)
    except DeltaError as error:
        raise SyncError(f"version {version} cannot be opened: {error}", table=location.uri(table)) from error
    if opened is None:
        raise SyncError(f"there is no table with a version {version}", table=location.uri(table))
    found = frozenset(active_files(opened))
    if any(file.vector is not None and file.vector.storage == ABSOLUTE for file in found):
        raise SyncError(
            "the table has deletion vectors outside of its folder, which are not copied",
            table=location.uri(table),
            advice="run REORG TABLE … APPLY (PURGE)",
        )
    return found


def _vector_files(files: Iterable[TableFile]) -> set[str]:
    return {file.vector.path for file in files if file.vector is not None and file.vector.path is not None}


def _paths(files: Collection[TableFile]) -> set[str]:
    return {unquote(file.path) for file in files} | _vector_files(files)  # the log has paths as URIs


def _file_sizes(location: WarehouseLocation, table: str, version: int) -> dict[str, int]:
    found = _table_files(location, table, version)
    sizes = {unquote(file.path): file.size for file in found}
    vectors = sorted(_vector_files(found))
    for path, info in zip(
        vectors, location.fs.get_file_info([location.at(table, path) for path in vectors]), strict=True
    ):
        if info.type != pafs.FileType.File:
            raise SyncError("a file of deletion vectors is missing", table=location.uri(table), file=path)
        sizes[path] = info.size
    return sizes


def _missing_or_different(
    target: WarehouseLocation,
    table: str,
    source_files: Mapping[str, int],
    has_same_content: Callable[[str], bool],
    *,
    check_all: bool,
) -> dict[str, int]:
    """Return the source files that the target lacks or has in another size or, with `check_all`, content."""
    paths = list(source_files)
    infos = target.fs.get_file_info([target.at(table, path) for path in paths])
    lacking = {}
    for path, info in zip(paths, infos, strict=True):
        has_size = info.type == pafs.FileType.File and info.size == source_files[path]
        if not has_size or (check_all and not has_same_content(path)):
            lacking[path] = source_files[path]
    return lacking


def _missing_sidecars(source: WarehouseLocation, target: WarehouseLocation, table: str) -> dict[str, int]:
    """Return the sidecars (name to size in bytes) that the target lacks or has in another size."""
    ours, theirs = (
        files.file_sizes(location, table, LOG_FOLDER, SIDECARS_FOLDER) for location in (source, target)
    )
    return {name: size for name, size in ours.items() if theirs.get(name) != size}


def truncate_log(target: WarehouseLocation, plan: TableCopyPlan) -> None:
    """Remove from the target's log the files of a discarded branch, the newest first."""
    if plan.log.truncate:
        files.remove(target, plan.table, LOG_FOLDER, LAST_CHECKPOINT)
    for file in plan.log.truncate:
        files.remove(target, plan.table, LOG_FOLDER, file.name)


def copy_files(
    source: WarehouseLocation,
    target: WarehouseLocation,
    plan: TableCopyPlan,
    on_copied: Callable[[int], None],
    map_paths: MapPaths,
) -> None:
    """Copy the files that the target lacks, and remove log files that the source no longer has."""
    map_paths(
        lambda path: on_copied(files.copy(source, target, plan.table, *path.split("/"))),
        list(plan.data_files),
    )
    for name in plan.sidecars:
        on_copied(files.copy(source, target, plan.table, LOG_FOLDER, SIDECARS_FOLDER, name))
    for file in plan.log.copy:
        on_copied(files.copy(source, target, plan.table, LOG_FOLDER, file.name))
    for file in plan.log.remove:
        files.remove(target, plan.table, LOG_FOLDER, file.name)
    _copy_last_checkpoint(source, target, plan)


def _copy_last_checkpoint(source: WarehouseLocation, target: WarehouseLocation, plan: TableCopyPlan) -> None:
    """Copy `_last_checkpoint` if the copy has the checkpoint that it names; else remove it from the target."""
    is_valid = LAST_CHECKPOINT in plan.source_log_sizes
    if is_valid:
        with source.fs.open_input_stream(source.at(plan.table, LOG_FOLDER, LAST_CHECKPOINT)) as stream:
            is_valid = int(json.loads(stream.read())["version"]) <= plan.version
    if is_valid:
        if LAST_CHECKPOINT not in files.file_sizes(
            target, plan.table, LOG_FOLDER
        ) or not files.have_same_content(source, target, plan.table, LOG_FOLDER, LAST_CHECKPOINT):
            files.copy(source, target, plan.table, LOG_FOLDER, LAST_CHECKPOINT)
    else:
        files.remove(target, plan.table, LOG_FOLDER, LAST_CHECKPOINT)


def check_copy(
    source: WarehouseLocation, target: WarehouseLocation, plan: TableCopyPlan, *, only_copied: bool = False
) -> int:
    """Check that a table is the same in both locations at the plan's version, and return the number of rows checked.

    Raises:
        SyncError: If the version, the files, their sizes or the numbers of rows differ.
    """
    table, version = plan.table, plan.version
    opened = target.open(table)
    if opened is None or opened.version() != version:
        found = None if opened is None else opened.version()
        raise _copy_differs(table, f"version {found} instead of {version}")
    ours, theirs = _table_files(source, table, version), _table_files(target, table, version)
    if _facts(ours) != _facts(theirs):
        one_side = len(ours ^ theirs)
        raise _copy_differs(table, f"{one_side} files are on one side only, or sizes or row counts differ")
    checked = {file for file in theirs if not only_copied or _paths([file]) & plan.data_files.keys()}
    sizes = {unquote(file.path): file.size for file in checked}
    infos = target.fs.get_file_info([target.at(table, path) for path in sizes])
    for info, (path, size) in zip(infos, sizes.items(), strict=True):
        if info.type != pafs.FileType.File or info.size != size:
            raise _copy_differs(table, f"{path} is missing, or its size is not {size} bytes")
    return sum(_count_rows(target, table, file) for file in checked)


def _facts(files: Iterable[TableFile]) -> dict[str, tuple[int, int | None]]:
    return {file.id: (file.size, file.num_records) for file in files}


def _count_rows(location: WarehouseLocation, table: str, file: TableFile) -> int:
    """Return the number of rows of a data file, by its footer and its deletion vector."""
    counted = int(open_footer(location, table, file).num_rows)
    if file.num_records is not None and file.num_records != counted:
        raise _copy_differs(table, f"{unquote(file.path)} has {counted} rows instead of {file.num_records}")
    if file.vector is None:
        return counted
    try:
        return counted - len(read_vector(location, table, file.vector))
    except WarehouseError as error:
        raise _copy_differs(table, error.reason) from error


def _copy_differs(table: str, reason: str) -> SyncError:
    return SyncError(f"the copy differs from the source: {reason}", table=table, advice="sync again")


MapPaths = Callable[[Callable[[str], None], list[str]], None]
"""Calls a function with each path of a list; may use threads."""
