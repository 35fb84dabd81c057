"""`_rid`: the RID of this warehouse (docs/rid.md), with its history: one row per change, the newest one is in effect.

It is written with delta-rs, without Spark, and by compare-and-set: when two processes change the RID at once, one of
them reads the table again and repeats its change. So a copy may set the mark while the stream writes.

A *generation* is a range of epochs that one primary has written between two moments at which copies may have separated;
its id is a ULID. The *head* is the newest generation of a warehouse. A *branch* is a generation that only one of two
copies has. A *node* is one location with a copy of the data, and as a class (`udfs.rid.operations.Node`) its RID and
mark.

The *mark* (column `next`) is the id of the generation that begins with the first epoch after that of the row. It is
set while copies may exist that no job keeps connected; without a mark, later epochs belong to the head. The RID follows
from the newest row and the number of the newest epoch (`RidChange.at`), so an epoch itself writes nothing here. Commits
have marks of another kind (`warehouse.delta.fence`).
Not here: the rules (`udfs.rid`), and who may write (`warehouse.copies.primary`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from ulid import ULID

from schemas.errors import RidStateError
from udfs.rid.operations import Node, begin_generation
from udfs.rid.value import parse_rid
from warehouse.delta.data_files import append_to
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import NO_EPOCH, RID
from warehouse.delta.read import newest, rows_of

COMMIT_ATTEMPTS = 30

SYNC_START, SYNC_END = "sync_start", "sync_end"

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("changed_at", pa.timestamp("us", tz="UTC")),
        ("event", pa.string()),
        ("rid", pa.string()),
        ("next", pa.string()),
        ("epoch", pa.int64()),
        ("peer", pa.string()),
        ("writer", pa.string()),
    ]
)
"""The columns are explained at `RidChange`."""


@dataclass(frozen=True)
class RidChange:
    """One row of `_rid`."""

    number: int = 0
    """Counts the changes, from 1; 0 is a warehouse without a RID."""
    event: str = "none"
    """What happened: promote, demote, lock, unlock, generation, sync_start, sync_end, …"""
    node: Node = field(default_factory=Node)
    epoch: int = NO_EPOCH
    """The warehouse's newest epoch at the time of the change."""
    peer: str | None = None
    """The other warehouse of a copy, or the standbys of a connection, separated by `NAME_SEPARATOR` of `standbys`."""
    changed_at: datetime | None = None
    writer: str | None = None
    """The process that made the change: `host:pid`."""

    def at(self, epoch: int) -> RidChange:
        """Return the change as of a newest epoch: after a later epoch than the row's, a marked generation has begun."""
        if epoch <= self.epoch:
            return self
        return replace(self, node=begin_generation(self.node), epoch=epoch)


class RidTable:
    """The table `_rid` of one location."""

    def __init__(self, location: WarehouseLocation) -> None:
        self.location = location
        self._table: DeltaTable | None = None
        self._version = -1
        self._last = RidChange()

    def last(self) -> RidChange:
        """Return the newest change as it was written; its number is 0 if the warehouse has no RID."""
        if self._table is None:
            self._table = self.location.open(RID)
        else:
            self._table.update_incremental()
        if self._table is not None and self._table.version() != self._version:
            row = newest(self._table, "number")
            self._last = RidChange() if row is None else _change_of(row)
            self._version = self._table.version()
        return self._last

    def history(self) -> list[RidChange]:
        """Return all changes, the oldest first."""
        table = self.location.open(RID)
        if table is None:
            return []
        return sorted((_change_of(row) for row in rows_of(table)), key=lambda c: c.number)

    def update(
        self,
        event: str,
        epoch: int,
        change: Callable[[Node], Node],
        *,
        peer: str | None = None,
        may_lower_epoch: bool = False,
        is_always_written: bool = False,
    ) -> RidChange:
        """Change the RID, and return the row that is in effect then; if nothing changes, no row is written.

        Args:
            change: Called with the node at that epoch, and returns the new one. Called again if another process wrote
                first.
            may_lower_epoch: Whether `epoch` may be lower than the recorded epoch, because a branch was discarded.
            is_always_written: Whether to write a row for the event even if nothing changes.

        Raises:
            RidStateError: If other processes wrote first `COMMIT_ATTEMPTS` times.
        """
        for _ in range(COMMIT_ATTEMPTS):
            last = self.last()
            now = last.at(epoch)
            node = change(now.node)
            if node == last.node and not is_always_written:
                return now
            made = RidChange(
                last.number + 1,
                event,
                node,
                epoch if may_lower_epoch else now.epoch,
                peer,
                datetime.now(UTC),
                f"{socket.gethostname()}:{os.getpid()}",
            )
            if self._append(made):
                return made
        raise RidStateError(
            f"other processes changed the RID {COMMIT_ATTEMPTS} times in a row",
            warehouse=self.location.root,
            advice="find out who writes it, and try again",
        )

    def _append(self, change: RidChange) -> bool:
        if self._table is None:
            self._table = DeltaTable.create(
                self.location.uri(RID),
                SCHEMA,
                mode="ignore",
                description="This warehouse's RID and its history.",
            )
            if self.last().number:
                return False
        once = CommitProperties(max_commit_retries=0)
        try:
            append_to(self._table, self.location, RID, _arrow_table(change), once)
        except CommitFailedError:
            self._table = None
            self._version = -1
            return False
        return True


def new_ulid() -> ULID:
    """Return a new ULID, greater than all that this process has made before, also within one millisecond."""
    return ULID()


def _arrow_table(change: RidChange) -> pa.Table:
    row: dict[str, Any] = {
        "number": change.number,
        "changed_at": change.changed_at,
        "event": change.event,
        "rid": str(change.node.rid),
        "next": None if change.node.next_head is None else str(change.node.next_head),
        "epoch": change.epoch,
        "peer": change.peer,
        "writer": change.writer,
    }
    return pa.Table.from_pylist([row], schema=SCHEMA)


def _change_of(row: dict[str, Any]) -> RidChange:
    mark = None if row["next"] is None else ULID.from_str(row["next"])
    node = Node(parse_rid(row["rid"]), mark)
    return RidChange(
        row["number"], row["event"], node, row["epoch"], row["peer"], row["changed_at"], row["writer"]
    )


def is_writable(location: WarehouseLocation) -> bool:
    """Whether the warehouse may be written: it is a primary, or has no RID."""
    last = RidTable(location).last()
    return not last.number or last.node.rid.primary
