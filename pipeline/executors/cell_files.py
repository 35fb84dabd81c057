"""Stores the rows of log cells as files of this machine, where Spark's tasks and its driver run on one machine.

The driver maps such a file into memory, so large batches cross between the processes without a copy in Java. A cell
whose file cannot be written holds its rows itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from sources.xlog.stream.segment import Segment

SUFFIX = ".arrows"


@dataclass(frozen=True)
class CellFiles:
    """Which batches have their rows in files, and where."""

    folder: str
    """A folder of the local disk, of one writer alone (`config.lookups.KeyCache.cell_folder`)."""
    min_log_bytes: int
    """Batches of at most so many bytes of logs have their rows in the cells."""
    max_log_bytes: int
    """Batches of more bytes of logs have their rows in the cells."""

    def as_text(self) -> str:
        """Return the text of an option of Spark's data source."""
        return json.dumps(asdict(self))

    def folder_for(self, segments: Sequence[Segment]) -> str | None:
        """Return the folder for the rows of a batch; None if they stay in the cells."""
        log_bytes = sum(segment.end - segment.begin for segment in segments)
        return self.folder if self.min_log_bytes < log_bytes <= self.max_log_bytes else None


def cell_files_of(options: Mapping[str, str], name: str) -> CellFiles | None:
    """Return what an option of Spark's data source says (`CellFiles.as_text`); None without it."""
    text = options.get(name)
    return None if text is None else CellFiles(**json.loads(text))


def write_cell_file(folder: str, rows: pa.Table) -> str | None:
    """Write rows to a new file, and return its path; None if that fails."""
    path = Path(folder) / f"{uuid4()}{SUFFIX}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
    except OSError:
        with suppress(OSError):
            path.unlink()
        return None
    return str(path)


def read_cell_file(path: str) -> pa.Table:
    """Return the rows of a file, which stays mapped into memory while they are used, even if it is removed."""
    with pa.memory_map(path) as source:
        return pa.ipc.open_stream(source).read_all()


def remove_cell_files(folder: str) -> None:
    """Remove all files of a folder; batches that use their rows still have them."""
    shutil.rmtree(folder, ignore_errors=True)
