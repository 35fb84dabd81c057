"""What batches cost, for `status`, `doctor` and the report page: key copies, amplification, compaction debt.

A running stream stores the costs of its newest batch next to the key copies (`pipeline.commit.costs`), so this is known
on the stream's own machine alone. Debts are read from the logs of the tables, so they are those of this moment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.deployment import Config
from pipeline.commit.costs import BatchCosts, stored_costs
from pipeline.compaction.debt import CompactionDebt, debt_of
from pipeline.lookup.copy_folder import stored_bytes
from schemas.conditions import DEBT_BYTES, DEBT_SHARE
from schemas.errors import WarehouseError
from schemas.problems import Problem, problem
from schemas.units import size_text
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import live_files
from warehouse.delta.table_log import read_log


@dataclass(frozen=True)
class WriteCosts:
    """What batches of a deployment cost, as this machine knows it."""

    copies_folder: str
    copies_bytes: int
    copies_limit: int
    last_batch: BatchCosts | None = None
    """The costs of the newest batch; None if the stream never ran on this machine."""
    debts: Mapping[str, CompactionDebt] = field(default_factory=dict)
    """By table with deletion vectors: its debt now."""

    def as_json(self) -> dict[str, Any]:
        """Return the costs as a JSON object."""
        last = None if self.last_batch is None else self.last_batch.as_json()
        debts = {
            name: {"deleted_share": round(debt.deleted_share, 4), "due_bytes": debt.due_bytes}
            for name, debt in self.debts.items()
        }
        if last is not None:
            del last["debts"]
        copies = {"folder": self.copies_folder, "bytes": self.copies_bytes, "limit": self.copies_limit}
        return {"key_copies": copies, "last_batch": last, "deletion_vectors": debts}


def read_write_costs(config: Config, location: WarehouseLocation) -> WriteCosts:
    """Return what batches of a deployment cost."""
    folder = config.cache.folder(config.checkpoint)
    last = stored_costs(folder)
    names = () if last is None else last.debts
    return WriteCosts(
        folder,
        stored_bytes(Path(folder)),
        config.cache.limit,
        last,
        {name: debt for name in names if (debt := _debt_now(location, name)) is not None},
    )


def _debt_now(location: WarehouseLocation, table: str) -> CompactionDebt | None:
    try:
        return debt_of(live_files(read_log(location, table)))
    except (WarehouseError, OSError):  # a table that is gone, or is just being written
        return None


def debt_problems(debts: Mapping[str, CompactionDebt]) -> Iterator[Problem]:
    """Yield the tables in which compaction does not keep up with deleted rows."""
    for table, debt in debts.items():
        if debt.deleted_share > DEBT_SHARE and debt.due_bytes > DEBT_BYTES:
            deleted = f"{debt.deleted_share:.0%} of its rows are deleted"
            text = f"{deleted}, and {size_text(debt.due_bytes)} wait for compaction"
            yield problem("compaction_debt", f"table {table}", text)


def cost_lines(costs: WriteCosts) -> Iterator[str]:
    """Yield what `aggregator status` prints about costs."""
    size, limit = size_text(costs.copies_bytes), size_text(costs.copies_limit)
    last = costs.last_batch
    searches = "" if last is None else f"; the last batch: {copies_text(last)}"
    yield f"key copies: {size} of at most {limit} in {costs.copies_folder}{searches}"
    if last is not None and last.written_bytes:
        yield f"last batch: {written_text(last)}"
    for table, debt in costs.debts.items():
        due = f", {size_text(debt.due_bytes)} wait for compaction" if debt.due_bytes else ""
        yield f"deletion vectors of {table}: {debt.deleted_share:.1%} of its rows are deleted{due}"


def copies_text(costs: BatchCosts) -> str:
    """Return as text how a batch's lookups found keys."""
    return f"{costs.copies.used} searches of files by copies, {costs.copies.missed} without"


def written_text(costs: BatchCosts) -> str:
    """Return as text what a batch wrote to tables of spaces."""
    parts = {"vectors": costs.vector_bytes, "compaction": costs.compaction_bytes}
    more = "".join(f", {size_text(size)} by {name}" for name, size in parts.items() if size)
    times = "" if costs.amplification is None else f", {costs.amplification:.1f} times the changed rows"
    return f"{size_text(costs.written_bytes)} written{more}{times}"
