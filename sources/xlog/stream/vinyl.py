"""Finds the vinyl rows from before a checkpoint: the `.run` files that belong to a `.snap`.

The segments of these files are read by the batch that reads the end of the snapshot.

A `.snap` has only memtx rows. The `.vylog` of the same signature names the runs of each vinyl space
(`sources.xlog.format.vylog`). They are the files `<space id>/<index id>/<run id>.run` in the same directory, which have
blocks like every log file. A run's rows are statements (INSERT, REPLACE, DELETE, UPSERT), one for each key and read
view, without space id and origin; rows of type 102 describe the block. Keys are in ascending order, and the newest
statement of a key is first, so a run is read backwards. Of two runs of one range the older one has the lower lsns, so
runs are read in the order of their greatest lsn (`.index`, type 100, key 4). Their rows become rows of the snapshot,
without lsn or time.

Tarantool splits the ranges of an index of more than 1 GiB. Then only parts of a run may belong to the space, and the
others are left out (`sources.xlog.stream.slices`). Runs of different ranges have different keys, and those of one range
have different lsns, so the order of reading is right for each key.

A space is *refused* if its rows cannot be read: this is logged, and everything else is read.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import (
    TupleError,
    UnsupportedError,
    XlogError,
    XlogMissingError,
    XlogRowError,
    XlogTruncatedError,
)
from schemas.iproto import LSN_MAX, RequestType
from schemas.system_tuples import integer_of, unpacked
from schemas.xrow import CORRUPT_COLUMN
from sources.xlog.directory.directory import Directory, child_path
from sources.xlog.format.block import EOF_MARKER
from sources.xlog.format.vylog import ALL_KEYS, Run, Tree, trees_at_checkpoint
from sources.xlog.reader import reader
from sources.xlog.stream.segment import Segment
from sources.xlog.stream.slices import IsInSlices, Slices

logger = logging.getLogger(__name__)

STATEMENT_TYPES = ("INSERT", "REPLACE", "DELETE", "UPSERT")
_RUN_INFO_TYPE, _MAX_LSN_KEY = RequestType.RUNINFO.name, 4


@dataclass(frozen=True)
class VinylSpaces:
    """The vinyl spaces of one snapshot."""

    trees: tuple[Tree, ...] = ()
    """The primary indexes of the spaces whose rows can be read, with their runs in the order of reading."""
    refused_ids: frozenset[int] = frozenset()
    """Ids of the refused spaces: they have a missing or damaged file, or a split range and a key with a
    collation.
    """

    @property
    def space_ids(self) -> frozenset[int]:
        """Ids of the spaces whose rows can be read."""
        return frozenset(tree.space_id for tree in self.trees)


def vinyl_spaces_of(directory: Directory, snapshot: str, *, is_strict: bool = False) -> VinylSpaces:
    """Return the vinyl spaces of a snapshot; there are none if the directory has no `.vylog` of the same signature.

    If the `.vylog` is damaged or has an invalid record, all vinyl spaces are refused, and the result names none. A
    space is refused if a file of a run is missing, if its `.index` is damaged, or its `.run` incomplete or no log file,
    or if a range was split and the order of its keys is not supported.
    Damaged blocks inside a `.run` are handled later, when they are read, according to `mode`.

    Args:
        directory, snapshot: The source's directory, and the base name of a `.snap` in it.
        is_strict: Whether damage is an error instead, as for a source of the option `path` or `paths` in mode FAILFAST.

    Raises:
        XlogError: If a file is damaged, or one that the `.vylog` names is missing, and `is_strict`.
        UnsupportedError: If a range was split, the order of its keys is not supported, and `is_strict`.
    """
    name = snapshot.removesuffix(".snap") + ".vylog"
    fs, path = directory.locate(name)
    try:
        rows = reader.read_rows(fs, path, limits=directory.limits)
        trees = trees_at_checkpoint((row for batch in rows for row in batch["tuple"].to_pylist()), name)
    except XlogMissingError:
        return VinylSpaces()
    except XlogError as error:
        if is_strict and not isinstance(error, XlogRowError):
            raise
        logger.error(
            "source %s: the vinyl spaces of %s are refused: %s", directory.source.name, snapshot, error
        )
        return VinylSpaces()
    whole, refused = [], set()
    for tree in trees.values():
        try:
            for run in tree.runs:
                _check_slices(tree, run, name)
            whole.append(_with_sorted_runs(directory, tree))
        except (XlogError, UnsupportedError, TupleError) as error:
            if is_strict:
                raise
            logger.error(
                *("source %s: the vinyl space %d of %s is refused: %s", directory.source.name),
                *(tree.space_id, snapshot, error),
            )
            refused.add(tree.space_id)
    return VinylSpaces(tuple(whole), frozenset(refused))


def _with_sorted_runs(directory: Directory, tree: Tree) -> Tree:
    """Check that the files of a tree's runs are complete; return the tree with its runs in the order of reading."""
    folder = f"{tree.space_id}/0"
    lsns = {run: _max_lsn(directory, folder, run) for run in tree.runs}
    for run in tree.runs:
        _check_is_complete(directory, _run_file(tree, run))
    return replace(tree, runs=tuple(sorted(tree.runs, key=lambda run: (lsns[run], run.id))))


def _slices_of(tree: Tree, run: Run) -> Slices | None:
    if run.intervals == ALL_KEYS:
        return None
    return Slices(tree.space_id, tree.key_parts, run.intervals)


def _check_slices(tree: Tree, run: Run, vylog: str) -> None:
    slices = _slices_of(tree, run)
    if slices is not None:
        slices.selector(vylog)


def _run_file(tree: Tree, run: Run) -> str:
    return f"{tree.space_id}/0/{run.id:020}.run"


def _check_is_complete(directory: Directory, file: str) -> None:
    """Raise an error if a run has no header or no end marker: its file is an incomplete copy."""
    fs, path = directory.locate(file)
    try:
        begin = reader.read_meta(fs, path).length
    except XlogMissingError as error:
        raise _missing_file_error(directory, file) from error
    with fs.open_input_file(path) as stream:
        size = stream.size()
        is_whole = size >= begin + len(EOF_MARKER)
        marker = stream.read_at(len(EOF_MARKER), size - len(EOF_MARKER)) if is_whole else b""
    if marker != EOF_MARKER:
        raise XlogTruncatedError(
            "the run has no end marker: it is incomplete",
            file=file,
            offset=size,
            advice="copy the file again",
        )


def is_end_of_snapshot(directory: Directory, segment: Segment) -> bool:
    """Return whether a segment of a snapshot includes the end of the file."""
    fs, path = directory.locate(segment.file)
    return bool(segment.end >= fs.get_file_info(path).size - len(EOF_MARKER))


def run_segments(directory: Directory, snapshot: Segment, vinyl: VinylSpaces) -> Iterator[Segment]:
    """Yield the segments of a snapshot's runs in the order of applying; raise XlogMissingError if a file is gone."""
    for tree in vinyl.trees:
        for run in tree.runs:
            file = _run_file(tree, run)
            fs, path = directory.locate(file)
            begin = reader.read_meta(fs, path).length
            end = fs.get_file_info(path).size - len(EOF_MARKER)
            if end > begin:
                yield replace(
                    snapshot,
                    path=child_path(directory.source.path, file),
                    file=file,
                    begin=begin,
                    end=end,
                    gap=None,
                    vinyl_space_ids=None,
                    space_id=tree.space_id,
                    slices=_slices_of(tree, run),
                )


def _max_lsn(directory: Directory, folder: str, run: Run) -> int:
    file = f"{folder}/{run.id:020}.index"
    fs, path = directory.locate(file)
    try:
        for batch in reader.read_rows(fs, path, limits=directory.limits):
            for row in batch.select(["type", "body"]).to_pylist():
                if row["type"] == _RUN_INFO_TYPE:
                    return _max_lsn_in_body(row["body"], file)
    except XlogMissingError as error:
        raise _missing_file_error(directory, file) from error
    raise XlogRowError("the file does not describe its run", file=file, offset=0)


def _max_lsn_in_body(body: bytes, file: str) -> int:
    try:
        info: Any = unpacked(body)
        return integer_of(info.get(_MAX_LSN_KEY) if isinstance(info, dict) else None, "the lsn", 0, LSN_MAX)
    except TupleError:
        raise XlogRowError(
            "the file does not name the greatest lsn of its run", file=file, offset=0
        ) from None


def _missing_file_error(directory: Directory, file: str) -> XlogMissingError:
    return XlogMissingError(
        "a file that the .vylog names is missing",
        file=file,
        source=directory.source.name,
        advice="copy the folders of vinyl spaces with the snapshot, or begin with the first log (start: logs)",
    )


def as_snapshot_rows(
    batches: Iterable[pa.RecordBatch], space_id: int, is_in_slices: IsInSlices | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the statements and corrupt records of a part of a run as rows of a snapshot, in reverse order.

    Statements outside the run's slices are left out.

    In a run that was written during a read transaction, a key has several statements, and the newest is first. So rows
    in reverse order end with the newest.
    """
    for batch in reversed(list(batches)):
        backwards = pa.array(np.arange(batch.num_rows - 1, -1, -1))
        yield _as_snapshot_rows(batch.take(backwards), space_id, is_in_slices)


def _as_snapshot_rows(
    batch: pa.RecordBatch, space_id: int, is_in_slices: IsInSlices | None
) -> pa.RecordBatch:
    wanted = pc.is_in(batch["type"], value_set=pa.array(STATEMENT_TYPES))
    if is_in_slices is not None:
        wanted = pc.and_(wanted, is_in_slices(batch))
    if CORRUPT_COLUMN in batch.schema.names:
        wanted = pc.or_(wanted, pc.is_valid(batch[CORRUPT_COLUMN]))
    rows = batch.filter(wanted)
    columns: dict[str, pa.Array] = {
        "space_id": pa.repeat(pa.scalar(space_id, pa.int32()), rows.num_rows),
        **{name: pa.nulls(rows.num_rows, rows[name].type) for name in ("lsn", "tsn", "timestamp")},
    }
    arrays = [columns.get(name, rows[name]) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)
