"""The generations of a warehouse and their epochs, from the history of its RID, and their comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ulid import ULID

from udfs.rid.comparison import Comparison, Generation, compare, rid_generations, with_epochs
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY_ULID
from warehouse.copies.rid import SYNC_END, SYNC_START, RidChange, RidTable
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import last_epoch


@dataclass(frozen=True)
class GenerationRange:
    """A generation of a warehouse, with the range of its epochs (`warehouse.copies.rid` explains the terms)."""

    ulid: ULID
    first_epoch: int
    last_epoch: int
    """The first and the last epoch of the generation. The head (the newest generation) ends with the newest epoch, a
    copied generation with the epoch of the copy."""
    copied_from: str | None = None
    """The warehouse from which the generation was copied."""

    def to_generation(self, *, is_head: bool) -> Generation:
        """Return the generation as `rid show` and `rid compare` print it, with its epochs and origin as text."""
        if self.last_epoch < self.first_epoch:
            epochs = "no epochs yet"
        elif self.first_epoch == self.last_epoch:
            epochs = f"epoch {self.first_epoch}"
        else:
            epochs = f"epochs {self.first_epoch} to {self.last_epoch}"
        parts = (
            ["head"] * is_head + [epochs] + ([f"copied from {self.copied_from}"] if self.copied_from else [])
        )
        return Generation(self.ulid, ", ".join(parts))


def generations_of(history: Sequence[RidChange], epoch: int) -> list[GenerationRange]:
    """Return the generations of a warehouse, the newest first, without those that were discarded."""
    ranges: list[GenerationRange] = []
    in_a_sync = bool(history) and history[-1].node.rid.incoming != EMPTY_ULID
    newest = [history[-1].at(epoch)] if history and not in_a_sync else []
    for change in [*history, *newest]:
        rid = change.node.rid
        known = next((i for i, one in enumerate(ranges) if one.ulid == rid.head), None)
        if rid.head == EMPTY_ULID:
            ranges = []
        elif known is None:
            first = ranges[-1].last_epoch + 1 if ranges else 0
            source = change.peer if change.event == SYNC_END else None
            ranges.append(GenerationRange(rid.head, first, change.epoch, source))
        else:
            ranges = ranges[: known + 1]
            if change.event == SYNC_START:
                # Epochs copied while connected have no rows of their own, and discarded ones are gone: the row of
                # the sync's start names the head's last epoch.
                ranges[known] = replace(ranges[known], last_epoch=change.epoch)
            elif rid.incoming == EMPTY_ULID:
                ranges[known] = replace(ranges[known], last_epoch=max(change.epoch, ranges[known].last_epoch))
    return ranges[::-1]


def last_epoch_of_generation(ranges: Sequence[GenerationRange], ulid: ULID) -> int | None:
    """Return the last epoch of one of a warehouse's generations; None if none of them has this ULID."""
    return next((one.last_epoch for one in ranges if one.ulid == ulid), None)


@dataclass(frozen=True)
class ComparedRid:
    """One side of a comparison: a warehouse, or only a RID."""

    name: str
    """The warehouse's folder, or the RID as text."""
    node: Node
    epoch: int | None = None
    """The newest epoch of a warehouse; None for a RID."""
    ranges: tuple[GenerationRange, ...] = field(default=())
    """The generations of a warehouse, the newest first; empty for a RID."""

    def printed_generations(self) -> list[Generation]:
        """Return the generations with the texts that `rid show` and `rid compare` print, the newest first."""
        if not self.ranges:
            return rid_generations(self.node.rid)
        return [one.to_generation(is_head=one.ulid == self.node.rid.head) for one in self.ranges]


def read_compared_rid(location: WarehouseLocation) -> ComparedRid:
    """Read the RID and the generations of a warehouse, for a comparison."""
    epoch = last_epoch(location)
    history = RidTable(location).history()
    node = history[-1].at(epoch).node if history else Node()
    return ComparedRid(location.root, node, epoch, tuple(generations_of(history, epoch)))


def compare_warehouses(a: ComparedRid, b: ComparedRid) -> Comparison:
    """Compare two RIDs. If both are of warehouses, also compare where the newest common generation ends in each."""
    found = compare(a.node.rid, b.node.rid)
    ends = (
        None
        if found.common is None
        else [last_epoch_of_generation(one.ranges, found.common) for one in (a, b)]
    )
    if ends is None or ends[0] is None or ends[1] is None:
        return found
    return with_epochs(found, a.node.rid, b.node.rid, (ends[0], ends[1]))


def common_epoch(a: ComparedRid, b: ComparedRid, generation: ULID | None) -> int | None:
    """Return the last epoch of a generation that both sides have; None if it is not known."""
    ends = [] if generation is None else [last_epoch_of_generation(one.ranges, generation) for one in (a, b)]
    known = [end for end in ends if end is not None]
    return min(known, default=None)
