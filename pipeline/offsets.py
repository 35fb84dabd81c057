"""Reads a micro-batch's offsets from the checkpoint's offset log.

Spark passes only a batch's number to `foreachBatch`, but it writes the end offset to its log before the batch begins.
The format has not changed since Spark 2.1 (`OffsetSeqLog`): a line `v1`, a line of metadata, one line for each source.
The aggregator's query has one source. The log is only read.
"""

from __future__ import annotations

from typing import Any

from schemas.errors import OffsetError
from warehouse.warehouse import Warehouse

NONE = "-"
"""The text for a source without an offset (`OffsetSeqLog.SERIALIZED_VOID_OFFSET`)."""


def parse_offset_file(text: str, where: str) -> str | None:
    """Return the source's offset from the text of an offset log file; `where` is the file's path, for errors.

    Raises
    ------
    OffsetError
        If the text does not have the format above, or several sources.

    """
    lines = text.split("\n")
    if len(lines) != 3 or lines[0].strip() != "v1":
        raise OffsetError("the checkpoint's offset log is not that of one source", file=where)
    return None if lines[2] == NONE else lines[2]


def read_offset(warehouse: Warehouse, checkpoint: str, batch_id: int) -> str | None:
    """Return the end offset of a batch; None if the batch is not in the log."""
    where = f"{checkpoint.rstrip('/')}/offsets/{batch_id}"
    fs, path = warehouse.hadoop_file(where)
    if batch_id < 0 or not fs.exists(path):
        return None
    return parse_offset_file(_text(fs, path), where)


def _text(fs: Any, path: Any) -> str:
    stream = fs.open(path)
    try:
        return bytes(stream.readAllBytes()).decode()
    finally:
        stream.close()
