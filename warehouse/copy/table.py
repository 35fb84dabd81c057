"""One table of a copy: what the target lacks of it, bringing that, and checking what is there then.

Data files first, then the log from the oldest commit on: so a version is there only with all of its files. What a
discarded branch wrote is taken off the log from the newest commit on, before anything comes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from schemas.errors import SyncError
from warehouse.copy import files
from warehouse.copy.names import LAST_CHECKPOINT, LOG, SIDECARS
from warehouse.copy.plan import LogPlan, plan_log, readable
from warehouse.place import Place


@dataclass(frozen=True)
class TableCopy:
    """What is to be done for one table.

    Parameters
    ----------
    table : str
    version : int
        The one that the target will have.
    log : LogPlan
    data : mapping of str to int
        Files that the target lacks, below the table's folder, with their sizes in bytes.
    sidecars : mapping of str to int
        The same, of the checkpoints.
    log_sizes : mapping of str to int
        Sizes of the source's log files, in bytes.

    """

    table: str
    version: int
    log: LogPlan
    data: Mapping[str, int] = field(default_factory=dict)
    sidecars: Mapping[str, int] = field(default_factory=dict)
    log_sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """How much is to be copied, in bytes."""
        logs = sum(self.log_sizes[file.name] for file in self.log.copy)
        return sum(self.data.values()) + sum(self.sidecars.values()) + logs


def plan_table(
    source: Place, target: Place, table: str, version: int, *, check_all: bool, trusts_target: bool = False
) -> TableCopy:
    """Find what the target lacks of a table.

    Parameters
    ----------
    source, target : Place
    table : str
    version : int
        Of the source: what the target is to have.
    check_all : bool
        Whether to compare the content of files that both have, not only their sizes.
    trusts_target : bool
        Whether the target has every file that its log names, and its checkpoints are right.

    Raises
    ------
    SyncError
        If the source does not open at that version any more.

    """
    ours, theirs = files.sizes(source, table, LOG), files.sizes(target, table, LOG)
    if not readable(ours, version):
        raise SyncError(
            f"the source's log no longer opens at version {version}",
            table=table,
            advice="let the source write a batch, and sync again",
        )
    same = partial(files.same, source, target, table)

    def same_log(name: str) -> bool:
        return (trusts_target and not name.endswith(".json")) or same(LOG, name)

    log = plan_log(ours, theirs, version, same_log, check_all=check_all)
    if trusts_target and not log.copy and not log.truncate:
        return TableCopy(table, version, log, {}, {}, ours)
    data = {path: size for path, (size, _) in active(source, table, version).items()}
    if trusts_target and not log.truncate:
        data = _since(source, target, table, data)
    return TableCopy(
        table,
        version,
        log,
        _lacking(target, table, data, same, check_all=check_all),
        _sidecars(source, target, table),
        ours,
    )


def missing_files(source: Place, target: Place, table: str, version: int) -> dict[str, int]:
    """Return the data files of a table that the target lacks or has in another size, with their sizes in bytes."""
    data = {path: size for path, (size, _) in active(source, table, version).items()}
    return _lacking(target, table, data, lambda _name: True, check_all=False)


def _since(source: Place, target: Place, table: str, data: Mapping[str, int]) -> dict[str, int]:
    """Return the data files that the source has and the target's version lacks; all where it has no table."""
    opened = target.open(table)
    held = {} if opened is None else active(source, table, opened.version())
    return {path: size for path, size in data.items() if path not in held}


def active(place: Place, table: str, version: int) -> dict[str, tuple[int, int | None]]:
    """Return the data files of a table at a version: path to size in bytes, and rows where the log has them.

    Raises
    ------
    SyncError
        If the table does not open at that version, or has what this copy does not know.

    """
    try:
        opened = place.open(table, version)
    except DeltaError as error:
        raise SyncError(f"version {version} does not open: {error}", table=place.uri(table)) from error
    if opened is None:
        raise SyncError(f"there is no table of version {version}", table=place.uri(table))
    if "deletionVectors" in (opened.protocol().reader_features or ()):
        raise SyncError(
            "the table has deletion vectors, which are not copied",
            table=place.uri(table),
            advice="set delta.enableDeletionVectors to false and run REORG TABLE … APPLY (PURGE)",
        )
    actions = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    # The log has paths as URIs: percent-encoded.
    return {unquote(a["path"]): (int(a["size_bytes"]), a["num_records"]) for a in actions}


def _lacking(
    target: Place, table: str, wanted: Mapping[str, int], same: Callable[[str], bool], *, check_all: bool
) -> dict[str, int]:
    paths = list(wanted)
    infos = target.fs.get_file_info([target.at(table, path) for path in paths])
    lacking = {}
    for path, info in zip(paths, infos, strict=True):
        whole = info.type == pafs.FileType.File and info.size == wanted[path]
        if not whole or (check_all and not same(path)):
            lacking[path] = wanted[path]
    return lacking


def _sidecars(source: Place, target: Place, table: str) -> dict[str, int]:
    ours, theirs = (files.sizes(place, table, LOG, SIDECARS) for place in (source, target))
    return {name: size for name, size in ours.items() if theirs.get(name) != size}


def truncate(target: Place, plan: TableCopy) -> None:
    """Remove from the target's log the files that the source does not have."""
    if plan.log.truncate:
        files.remove(target, plan.table, LOG, LAST_CHECKPOINT)
    for file in plan.log.truncate:
        files.remove(target, plan.table, LOG, file.name)


def bring(source: Place, target: Place, plan: TableCopy, done: Callable[[int], None], work: Work) -> None:
    """Copy what the target lacks.

    Parameters
    ----------
    done : callable
        Called with the bytes of each file.
    work : callable
        Runs a function for each of several data files, in any order.

    """
    work(lambda path: done(files.copy(source, target, plan.table, *path.split("/"))), list(plan.data))
    for name in plan.sidecars:
        done(files.copy(source, target, plan.table, LOG, SIDECARS, name))
    for file in plan.log.copy:
        done(files.copy(source, target, plan.table, LOG, file.name))
    for file in plan.log.remove:
        files.remove(target, plan.table, LOG, file.name)
    _hint(source, target, plan)


def _hint(source: Place, target: Place, plan: TableCopy) -> None:
    """Copy the file that names the newest checkpoint, if the copy has that checkpoint."""
    hint = LAST_CHECKPOINT in plan.log_sizes
    if hint:
        with source.fs.open_input_stream(source.at(plan.table, LOG, LAST_CHECKPOINT)) as stream:
            hint = int(json.loads(stream.read())["version"]) <= plan.version
    if hint:
        if LAST_CHECKPOINT not in files.sizes(target, plan.table, LOG) or not files.same(
            source, target, plan.table, LOG, LAST_CHECKPOINT
        ):
            files.copy(source, target, plan.table, LOG, LAST_CHECKPOINT)
    else:
        files.remove(target, plan.table, LOG, LAST_CHECKPOINT)


def check(source: Place, target: Place, plan: TableCopy, *, only_copied: bool = False) -> int:
    """Check that a table is the same in both places at the version of a plan, and return the rows counted.

    Parameters
    ----------
    source, target : Place
    plan : TableCopy
        What was done.
    only_copied : bool
        Whether to look only at data files that were copied; at all files of the version otherwise.

    Raises
    ------
    SyncError
        If the version, the files, their sizes or the rows differ.

    """
    table, version = plan.table, plan.version
    opened = target.open(table)
    if opened is None or opened.version() != version:
        raise _differs(table, f"version {None if opened is None else opened.version()} instead of {version}")
    ours, theirs = active(source, table, version), active(target, table, version)
    if ours != theirs:
        raise _differs(
            table, f"{len(ours.keys() ^ theirs.keys())} files of one side only, or other sizes or rows"
        )
    found = {path: facts for path, facts in theirs.items() if not only_copied or path in plan.data}
    infos = target.fs.get_file_info([target.at(table, path) for path in found])
    for info, (path, (size, _)) in zip(infos, found.items(), strict=True):
        if info.type != pafs.FileType.File or info.size != size:
            raise _differs(table, f"{path} is not there in its size")
    return _rows(target, table, found)


def _rows(place: Place, table: str, found: Mapping[str, tuple[int, int | None]]) -> int:
    total = 0
    for path, (_, rows) in found.items():
        counted: int = pq.read_metadata(place.at(table, path), filesystem=place.fs).num_rows
        if rows is not None and rows != counted:
            raise _differs(table, f"{path} has {counted} rows instead of {rows}")
        total += counted
    return total


def _differs(table: str, reason: str) -> SyncError:
    return SyncError(f"the copy is not the source's: {reason}", table=table, advice="sync again")


Work = Callable[[Callable[[str], None], list[str]], None]
"""Runs a function for each of several names."""
