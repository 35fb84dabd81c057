"""Reads a stream's checkpoint: the offsets of a micro-batch, and the offset at which the stream will resume.

Spark passes only a batch's number to `foreachBatch`, but it writes the end offset into a file under `offsets` before
the batch begins, and a file under `commits` after it (`OffsetSeqLog`, `CommitLog`); `metadata` has the query id. The
format of `offsets` is the same since Spark 2.1: a line `v1`, a line of metadata, one line for each source. The
aggregator's query has one source. A batch in `_epochs` is finished even if it is not in `commits`.

The checkpoint is only read: by Spark's file system while a stream runs, without Spark by `resume_offset`.
"""

import json
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs as pafs

from schemas.errors import OffsetError
from sources.xlog.directory.offset import Offset, from_text
from sources.xlog.reader.reader import open_fs
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.system_tables import epochs
from warehouse.warehouse import Warehouse

NO_OFFSET = "-"
"""The text for a source without an offset (`OffsetSeqLog.SERIALIZED_VOID_OFFSET`)."""


def parse_offset_file(text: str, path: str) -> str | None:
    """Return the source's offset from the text of an offset log file; raise OffsetError for any other format."""
    lines = text.split("\n")
    if len(lines) != 3 or lines[0].strip() != "v1":
        raise OffsetError("the checkpoint's offset log is not that of one source", file=path)
    return None if lines[2] == NO_OFFSET else lines[2]


def read_offset(warehouse: Warehouse, checkpoint: str, batch_id: int) -> str | None:
    """Return the end offset of a batch; None if the checkpoint does not have the batch."""
    where = f"{checkpoint.rstrip('/')}/offsets/{batch_id}"
    fs, path = warehouse.hadoop_file(where)
    if batch_id < 0 or not fs.exists(path):
        return None
    stream = fs.open(path)
    try:
        text = bytes(stream.readAllBytes()).decode()
    finally:
        stream.close()
    return parse_offset_file(text, where)


@dataclass(frozen=True)
class CheckpointBatches:
    """The batches of a checkpoint."""

    query_id: str
    """Spark's id of the streaming query."""
    committed: frozenset[int]
    fs: pafs.FileSystem = field(repr=False)
    root: str
    """The folder of the checkpoint, as a path of `fs`."""

    def offset_of(self, batch_id: int) -> str | None:
        """Return the end offset of a batch, as text; None if the checkpoint does not have it."""
        where = f"{self.root}/offsets/{batch_id}"
        if not _is_file(self.fs, where):
            return None
        return parse_offset_file(_read_text(self.fs, where), where)


def checkpoint_batches(checkpoint: str) -> CheckpointBatches | None:
    """Return the batches of a checkpoint, None without one; raise OffsetError if it cannot be read."""
    try:
        fs, root = open_fs(checkpoint)
        if not _is_file(fs, f"{root}/metadata"):
            return None
        query_id = str(json.loads(_read_text(fs, f"{root}/metadata"))["id"])
        return CheckpointBatches(query_id, frozenset(_batch_numbers(fs, f"{root}/commits")), fs, root)
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        raise OffsetError(f"the checkpoint cannot be read: {error}", path=checkpoint) from error


def resume_offset(warehouse: Warehouse, checkpoint: str) -> Offset | None:
    """Return the end offset of the last finished batch, None without one; raise OffsetError if it cannot be read."""
    try:
        fs, root = open_fs(checkpoint)
        offsets, commits = _batch_numbers(fs, f"{root}/offsets"), _batch_numbers(fs, f"{root}/commits")
        if not offsets:
            return None
        done = _finished_batches(warehouse, fs, root)
        numbers = [number for number in offsets if number in done or number in commits]
        if not numbers:
            return {}
        where = f"{root}/offsets/{max(numbers)}"
        text = parse_offset_file(_read_text(fs, where), where)
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        raise OffsetError(f"the checkpoint cannot be read: {error}", path=checkpoint) from error
    return {} if text is None else from_text(text)


def _finished_batches(warehouse: Warehouse, fs: pafs.FileSystem, root: str) -> set[int]:
    if not warehouse.exists(EPOCHS) or not _is_file(fs, f"{root}/metadata"):
        return set()
    return set(epochs.end_offsets(warehouse, str(json.loads(_read_text(fs, f"{root}/metadata"))["id"])))


def _batch_numbers(fs: pafs.FileSystem, folder: str) -> set[int]:
    infos = fs.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    return {int(info.base_name) for info in infos if info.base_name.isdigit()}


def _is_file(fs: pafs.FileSystem, path: str) -> bool:
    return bool(fs.get_file_info(path).type == pafs.FileType.File)


def _read_text(fs: pafs.FileSystem, path: str) -> str:
    with fs.open_input_file(path) as file:
        return bytes(file.read()).decode()
