"""Finds the offset at which a stream will resume, from its checkpoint and the tables, without Spark. Only reads.

Spark writes a file under `offsets` before each batch, and one under `commits` after it (`OffsetSeqLog`, `CommitLog`);
`metadata` has the query id. A batch in `_epochs` is finished even if it is not in `commits`.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.fs as pafs

from pipeline.offsets import parse_offset_file
from schemas.errors import OffsetError
from sources.xlog.directory.offset import Offset, from_text
from sources.xlog.reader.reader import open_fs
from warehouse import epochs
from warehouse.newest_epoch import EPOCHS
from warehouse.warehouse import Warehouse


def resume_offset(warehouse: Warehouse, checkpoint: str) -> Offset | None:
    """Return the end offset of the last finished batch; None if there is no checkpoint.

    Raises
    ------
    OffsetError
        If the checkpoint cannot be read.

    """
    try:
        fs, root = open_fs(checkpoint)
        offsets, commits = _numbers(fs, f"{root}/offsets"), _numbers(fs, f"{root}/commits")
        if not offsets:
            return None
        done = _finished_batches(warehouse, fs, root)
        numbers = [number for number in offsets if number in done or number in commits]
        if not numbers:
            return {}
        where = f"{root}/offsets/{max(numbers)}"
        text = parse_offset_file(_text(fs, where), where)
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        raise OffsetError(f"the checkpoint cannot be read: {error}", path=checkpoint) from error
    return {} if text is None else from_text(text)


def _finished_batches(warehouse: Warehouse, fs: pafs.FileSystem, root: str) -> set[int]:
    if not warehouse.exists(EPOCHS) or not _is_file(fs, f"{root}/metadata"):
        return set()
    return set(epochs.end_offsets(warehouse, str(json.loads(_text(fs, f"{root}/metadata"))["id"])))


def _numbers(fs: pafs.FileSystem, folder: str) -> set[int]:
    infos = fs.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    return {int(info.base_name) for info in infos if info.base_name.isdigit()}


def _is_file(fs: pafs.FileSystem, path: str) -> bool:
    return bool(fs.get_file_info(path).type == pafs.FileType.File)


def _text(fs: pafs.FileSystem, path: str) -> str:
    with fs.open_input_file(path) as file:
        return bytes(file.read()).decode()
