"""Reads a `.vylog`, the catalog of vinyl files: which `.run` files have the rows of each vinyl space at a checkpoint.

Each index of a vinyl space is an LSM tree. The tree is divided into ranges of keys, and a range is a list of slices,
which are parts of runs (sorted files). A slice has the keys from `begin` (with it) to `end` (without it), which are
first parts of keys, or no bound; it is never wider than what its range has of the run.

The file has the blocks of every log file. Each row is an INSERT whose tuple is `[type, {key: value}]`
(`enum vy_log_record_type` and `enum vy_log_key` in Tarantool's `src/box/vy_log.c`); keys with value 0 are left out:

    type                              keys that are read here
     0 CREATE_LSM, 15 PREPARE_LSM     0 id of the tree, 5 id of the index, 6 id of the space, 7 parts of the key
     1 DROP_LSM, 14 FORGET_LSM        0 id of the tree
     2 INSERT_RANGE                   0 id of the tree, 1 id of the range
     3 DELETE_RANGE                   1 id of the range
     5 CREATE_RUN                     0 id of the tree, 2 id of the run, 9 lsn of the dump
     8 INSERT_SLICE                   1 id of the range, 2 id of the run, 3 begin, 4 end, 8 id of the slice
     9 DELETE_SLICE                   8 id of the slice
    11 SNAPSHOT                       none: the records before it are the state at the checkpoint of that signature

A checkpoint starts a new file with that state and the SNAPSHOT record. Later records describe later dumps and
compactions, whose rows are in the `.xlog` files too, and are not read. `sources.xlog.stream.vinyl` reads the files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgpack

from schemas.errors import TupleError, XlogRowError
from schemas.iproto import LSN_MAX
from schemas.system_tuples import ID_MAX, integer_of, unpacked


class RecordType(IntEnum):
    """Types of the records that change which runs a space has; others are ignored."""

    CREATE_LSM = 0
    DROP_LSM = 1
    INSERT_RANGE = 2
    DELETE_RANGE = 3
    CREATE_RUN = 5
    INSERT_SLICE = 8
    DELETE_SLICE = 9
    SNAPSHOT = 11
    FORGET_LSM = 14


class RecordKey(IntEnum):
    """Keys in the map of a record."""

    LSM_ID = 0
    RANGE_ID = 1
    RUN_ID = 2
    BEGIN = 3
    END = 4
    INDEX_ID = 5
    SPACE_ID = 6
    KEY_PARTS = 7
    SLICE_ID = 8
    DUMP_LSN = 9


NUMERIC_KEYS = frozenset(map(int, RecordKey)) - {RecordKey.BEGIN, RecordKey.END, RecordKey.KEY_PARTS}

Interval = tuple[bytes | None, bytes | None]
"""The first key of an interval, and the first key behind it, as MessagePack arrays; None if there is no such bound."""

ALL_KEYS: tuple[Interval, ...] = ((None, None),)


@dataclass(frozen=True)
class Run:
    """One `.run` file of a space's primary index."""

    id: int
    """The number in the file's name."""
    dump_lsn: int
    """The dump that wrote this run wrote all rows of the index up to this lsn."""
    intervals: tuple[Interval, ...] = ALL_KEYS
    """The keys whose statements belong to the space. Of a run whose range was split, others may have been replaced by
    those of a later run.
    """


@dataclass(frozen=True)
class Tree:
    """The primary index of one vinyl space."""

    space_id: int
    runs: tuple[Run, ...] = ()
    """Id of the space, and its runs from the oldest to the newest."""
    key_parts: Any = ()
    """The parts of the primary key, as the file has them: maps that `schemas.space.part_of` reads, if it is valid."""


@dataclass
class _State:
    """The trees, ranges, runs and slices after the records so far, by their ids."""

    record_by_tree: dict[int, Mapping[int, Any]] = field(default_factory=dict)
    tree_by_range: dict[int, int] = field(default_factory=dict)
    dump_lsn_by_run: dict[int, int] = field(default_factory=dict)
    range_run_interval_by_slice: dict[int, tuple[int, int, Interval]] = field(default_factory=dict)

    def apply(self, kind: int, keys: Mapping[int, Any]) -> None:
        lsm, range_ = keys.get(RecordKey.LSM_ID, 0), keys.get(RecordKey.RANGE_ID, 0)
        if kind == RecordType.CREATE_LSM:
            self.record_by_tree[lsm] = keys
        elif kind in (RecordType.DROP_LSM, RecordType.FORGET_LSM):
            self.record_by_tree.pop(lsm, None)
        elif kind == RecordType.INSERT_RANGE:
            self.tree_by_range[range_] = lsm
        elif kind == RecordType.DELETE_RANGE:
            self.tree_by_range.pop(range_, None)
        elif kind == RecordType.CREATE_RUN:
            self.dump_lsn_by_run[keys.get(RecordKey.RUN_ID, 0)] = keys.get(RecordKey.DUMP_LSN, 0)
        elif kind == RecordType.INSERT_SLICE:
            self.range_run_interval_by_slice[keys.get(RecordKey.SLICE_ID, 0)] = (
                range_,
                keys.get(RecordKey.RUN_ID, 0),
                (keys.get(RecordKey.BEGIN), keys.get(RecordKey.END)),
            )
        elif kind == RecordType.DELETE_SLICE:
            self.range_run_interval_by_slice.pop(keys.get(RecordKey.SLICE_ID, 0), None)

    def tree(self, tree_id: int) -> Tree:
        intervals_by_run: dict[int, list[Interval]] = {}
        for range_, run, interval in self.range_run_interval_by_slice.values():
            if self.tree_by_range.get(range_) == tree_id:
                intervals_by_run.setdefault(run, []).append(interval)
        runs = [
            Run(run, self.dump_lsn_by_run.get(run, 0), _joined(intervals))
            for run, intervals in intervals_by_run.items()
        ]
        record = self.record_by_tree[tree_id]
        return Tree(
            record.get(RecordKey.SPACE_ID, 0),
            tuple(sorted(runs, key=lambda run: (run.dump_lsn, run.id))),
            record.get(RecordKey.KEY_PARTS, ()),
        )


def _joined(intervals: list[Interval]) -> tuple[Interval, ...]:
    """Join intervals that adjoin each other."""
    if (None, None) in intervals:
        return ALL_KEYS
    end_by_begin = dict(intervals)
    if len(end_by_begin) < len(intervals):  # no server writes this
        return tuple(intervals)
    ends = {end for _, end in intervals}
    found: list[Interval] = []
    first = [begin for begin in end_by_begin if begin is None or begin not in ends]
    for begin in [*first, *end_by_begin]:
        if begin in end_by_begin:
            end = end_by_begin.pop(begin)
            while end is not None and end in end_by_begin:
                end = end_by_begin.pop(end)
            found.append((begin, end))
    return tuple(found)


def trees_at_checkpoint(tuples: Iterable[bytes], file: str) -> dict[int, Tree]:
    """Return the primary index of each vinyl space at the checkpoint that a `.vylog` belongs to.

    Raises:
        XlogRowError: If a row is not a record, or the SNAPSHOT record is missing.
    """
    state = _State()
    for data in tuples:
        kind, keys = _decoded_record(data, file)
        if kind == RecordType.SNAPSHOT:
            found = [
                state.tree(lsm)
                for lsm, record in state.record_by_tree.items()
                if record.get(RecordKey.INDEX_ID, 0) == 0
            ]
            return {tree.space_id: tree for tree in found}
        state.apply(kind, keys)
    raise XlogRowError(
        "the file ends before its SNAPSHOT record",
        file=file,
        offset=0,
        advice="copy the .vylog of the snapshot's own signature, whole",
    )


def _decoded_record(data: bytes, file: str) -> tuple[int, Mapping[int, Any]]:
    """Return the type and the map of a record, in which bounds are MessagePack again."""
    try:
        kind, keys = unpacked(data)
        integer_of(kind, "the type")
        if not isinstance(keys, Mapping):
            raise TupleError("its keys are not a map")
        for key in NUMERIC_KEYS & keys.keys():
            integer_of(
                keys[key],
                f"key {key}",
                0,
                ID_MAX if key in (RecordKey.SPACE_ID, RecordKey.INDEX_ID) else LSN_MAX,
            )
        for key in (RecordKey.BEGIN, RecordKey.END):
            if keys.get(key) is not None:
                keys = {**keys, key: msgpack.packb(keys[key], unicode_errors="surrogateescape")}
    except (TupleError, ValueError, TypeError, OverflowError) as error:
        reason = error.reason if isinstance(error, TupleError) else "it is not a pair"
        raise XlogRowError(f"a row is not a record of a .vylog: {reason}", file=file, offset=0) from None
    return kind, keys
