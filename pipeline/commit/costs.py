"""What a batch has cost: the bytes that it wrote to the tables of spaces, and how its lookups found keys.

The newest costs are stored as a small file next to the key copies, so that `aggregator status`, `doctor` and the report
page, which are other processes, show them. Nothing depends on the file: anybody may remove it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.compaction.debt import CompactionDebt
from pipeline.lookup.key_copies import CopyCounts

if TYPE_CHECKING:
    # At run time it would import Spark, which `aggregator status` does not need.
    from pipeline.write.changes import TableWrite

log = logging.getLogger(__name__)

COSTS_FILE = "last_batch.json"

PAGE_BYTES = 4096


@dataclass(frozen=True)
class BatchCosts:
    """What one batch has cost. Only tables of spaces count: the aggregator's own ones get each row once."""

    epoch: int = 0
    changed_bytes: int = 0
    """The size of the batch's new rows in the files that it wrote: their part of these files."""
    data_bytes: int = 0
    """The size of the files that the batch wrote, old rows that it wrote again included."""
    vector_bytes: int = 0
    compaction_bytes: int = 0
    """The size of the files that compaction wrote after the batch."""
    copies: CopyCounts = field(default_factory=CopyCounts)
    debts: Mapping[str, CompactionDebt] = field(default_factory=dict)
    """By table with deletion vectors: its debt when it was last looked for, in this process."""

    @property
    def written_bytes(self) -> int:
        """All bytes that were written."""
        return self.data_bytes + self.vector_bytes + self.compaction_bytes

    @property
    def amplification(self) -> float | None:
        """The written bytes over those of the changed rows; None if the batch only deleted rows."""
        return self.written_bytes / self.changed_bytes if self.changed_bytes else None

    def as_json(self) -> dict[str, Any]:
        """Return the costs as a JSON object."""
        amplification = None if self.amplification is None else round(self.amplification, 2)
        shares = {name: round(debt.deleted_share, 4) for name, debt in self.debts.items()}
        debts = {name: {**asdict(debt), "deleted_share": shares[name]} for name, debt in self.debts.items()}
        written = {"written_bytes": self.written_bytes, "amplification": amplification}
        return {**asdict(self), "debts": debts, **written}


def changed_bytes(write: TableWrite) -> int:
    """Return the part of a write's files that its new rows have."""
    rows = sum(file.rows for file in write.added)
    return sum(file.size for file in write.added) * min(write.new_rows, rows) // rows if rows else 0


def written_to_spaces(writes: Iterable[TableWrite]) -> tuple[int, int]:
    """Return the bytes of the new rows, and of all files, of some writes."""
    listed = list(writes)
    return sum(map(changed_bytes, listed)), sum(file.size for write in listed for file in write.added)


def store_costs(folder: str | None, costs: BatchCosts) -> None:
    """Store the costs of the newest batch in the folder of key copies, if that is possible."""
    if folder is None:
        return
    content = json.dumps(costs.as_json()).encode()
    content += b" " * (-len(content) % PAGE_BYTES)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        # Written over the old content: a new file under the same name would wait for the disk, some milliseconds.
        descriptor = os.open(Path(folder) / COSTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, content)
            os.ftruncate(descriptor, len(content))
        finally:
            os.close(descriptor)
    except OSError as error:
        log.debug("the costs of the last batch cannot be stored: %s", error)


def stored_costs(folder: str | None) -> BatchCosts | None:
    """Return the stored costs of the newest batch; None if there are none that can be read."""
    if folder is None:
        return None
    try:
        found = json.loads((Path(folder) / COSTS_FILE).read_text())
        debts = {
            str(name): CompactionDebt(debt["row_count"], debt["deleted_rows"], debt["due_bytes"])
            for name, debt in found.pop("debts").items()
        }
        copies = CopyCounts(**found.pop("copies"))
        del found["amplification"], found["written_bytes"]
        return BatchCosts(**found, copies=copies, debts=debts)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
