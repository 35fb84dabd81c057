"""The states of vshard's buckets in each replicaset over a batch, and which buckets two replicasets hold at once.

Pure: the rows of `_bucket` in, states and their places in the log out (`schemas.vshard` says who writes what). "Bucket"
is vshard's here; a bucket of a distributed batch is another thing.

A bucket is *doubled* where two replicasets hold it as active. A log that is read less far than the other one may only
not have come to the move yet. So it is judged only once either log is read beyond the moment at which the other
replicaset got the bucket, by the times of their rows.

A replicaset that has sent a bucket away deletes its tuples. Its rows from there on wait for the log of the destination,
else the tables would lack these keys (`first_awaited_departure`). The destination activates a bucket before the source notes it
as sent, so no two replicasets wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import TYPE_CHECKING
from uuid import UUID

import msgpack

from pipeline.plan.position import LogPosition
from pipeline.plan.summary import ControlRow
from schemas.errors import TupleError, UnsupportedError
from schemas.system_tuples import field_at, fields_of, integer_of
from schemas.vshard import (
    BUCKET_FIELDS,
    COLLECTED_IN,
    RECEIVING,
    WRITABLE,
    bucket_of,
    is_bucket_space,
    shard_field,
)
from udfs.operations.operations import apply_update, apply_upsert
from udfs.operations.tuple_format import named

if TYPE_CHECKING:
    from pipeline.plan.control import ControlChanges, SpaceDefinition
    from pipeline.state import State


@dataclass(frozen=True)
class VshardBucket:
    """A bucket in one replicaset.

    Parameters
    ----------
    status : str
    peer : str or None
        The replicaset that it is sent to, or received from, as vshard names it.
    since : datetime or None
        When the replicaset got the bucket: of its row `receiving`, or of its first row; of a snapshot's, the time at
        which the snapshot was written.
    timestamp : datetime or None
        Of the row that says the state.
    doubled_with : frozenset of int
        Replicasets that hold the bucket as active too.

    """

    status: str
    peer: str | None = None
    since: datetime | None = None
    timestamp: datetime | None = None
    doubled_with: frozenset[int] = frozenset()


Buckets = Mapping[int, VshardBucket]


@dataclass(frozen=True)
class BucketEvent:
    """From a place on a bucket has a state; None: the replicaset does not have it any more."""

    position: LogPosition
    bucket: int
    status: str | None


MOVE_WAIT = timedelta(minutes=1)
"""How far a log is read at most, by the times of its rows, while it waits for the destination of a bucket."""

CLOCKS_DIFFER = timedelta(seconds=1)
"""By how much the clocks of servers are expected to differ at most."""


@dataclass(frozen=True)
class Departure:
    """A replicaset has sent a bucket away, and deletes its tuples behind this place of its log.

    Parameters
    ----------
    position : LogPosition
    bucket : int
    peer : str or None
        The destination, as vshard names it.
    since, timestamp : datetime or None
        When the replicaset got the bucket, and when it noted that it is sent.

    """

    position: LogPosition
    bucket: int
    peer: str | None
    since: datetime | None
    timestamp: datetime | None


@dataclass(frozen=True)
class BucketProgress:
    """The buckets of a replicaset, and how far its log is read, by the time of a row."""

    buckets: Buckets
    read_until: datetime | None


@dataclass(frozen=True)
class ReplicasetBuckets:
    """One replicaset's buckets over a batch.

    Parameters
    ----------
    before, after : mapping of int to VshardBucket
    events : tuple of BucketEvent
        In the order of the log.
    fields : mapping of int to int
        Sharded space's id to the field with the bucket's id, from 0.
    departures : tuple of Departure
        In the order of the log.

    """

    before: Buckets = field(default_factory=dict)
    after: Buckets = field(default_factory=dict)
    events: tuple[BucketEvent, ...] = ()
    fields: Mapping[int, int] = field(default_factory=dict)
    departures: tuple[Departure, ...] = ()

    @property
    def is_used(self) -> bool:
        """Whether the replicaset has vshard's buckets."""
        return bool(self.before or self.after or self.events)


def bucket_space_ids(
    spaces: Mapping[int, SpaceDefinition], changes: Iterable[SpaceDefinition] = ()
) -> frozenset[int]:
    """Return the ids of spaces that are vshard's `_bucket`, of known ones and of definitions in a batch."""
    known = [rows.decoded() for rows in (*spaces.values(), *changes)]
    return frozenset(space.id for space in known if is_bucket_space(space))


def follow_buckets(
    before: Buckets,
    spaces: Mapping[int, SpaceDefinition],
    control: ControlChanges,
    rows: Iterable[ControlRow],
    *,
    is_new_state: bool,
) -> ReplicasetBuckets:
    """Follow the rows of `_bucket` of one replicaset.

    Parameters
    ----------
    before : mapping of int to VshardBucket
    spaces : mapping of int to SpaceDefinition
        Before the batch.
    control : ControlChanges
        Of the batch.
    rows : iterable of ControlRow
        Those that count, in the order of the log; others than of `_bucket` are passed over.
    is_new_state : bool
        Whether the batch begins with a snapshot that replaces what is known.

    """
    defined = {**spaces, **{change.space_id: change.rows for change in control.changes}}
    own = bucket_space_ids(spaces, (change.rows for change in control.changes))
    fields = {i: shard_field(one.indexes.values()) for i, one in {**defined, **control.spaces}.items()}
    buckets = {} if is_new_state else dict(before)
    events: list[BucketEvent] = []
    departures: list[Departure] = []
    for row in rows:
        if row.space_id not in own or row.held_reason is not None:
            continue
        try:
            event, old = _apply_bucket_row(buckets, row)
        except (TupleError, UnsupportedError):
            continue  # no server writes it; the table of `_bucket` names it as any other row
        events.append(event)
        departures += _departures(event, old, buckets.get(event.bucket))
    shard_fields = {i: one for i, one in fields.items() if one is not None}
    return ReplicasetBuckets(
        before, buckets, tuple(events), shard_fields, () if is_new_state else tuple(departures)
    )


def _departures(event: BucketEvent, old: VshardBucket | None, new: VshardBucket | None) -> list[Departure]:
    if (
        old is None
        or new is None
        or new.status not in COLLECTED_IN
        or old.status in COLLECTED_IN | {RECEIVING}
    ):
        return []  # what a failed move had received is still at the source
    peer = old.peer if new.peer is None else new.peer
    return [Departure(event.position, event.bucket, peer, old.since, new.timestamp)]


def _apply_bucket_row(
    buckets: dict[int, VshardBucket], row: ControlRow
) -> tuple[BucketEvent, VshardBucket | None]:
    """Apply a row of `_bucket`, and return what it does and what was known of its bucket."""
    key = fields_of(row.key if row.key is not None else row.tuple, "a key of _bucket")
    number = integer_of(field_at(key, 0, "the bucket's id"), "the bucket's id")
    known = buckets.get(number)
    new = _bucket_tuple_after(number, known, row)
    if new is None:
        buckets.pop(number, None)
        return BucketEvent(row.position, number, None), known
    _, status, peer = bucket_of(fields_of(new, "a row of _bucket"))
    is_received = status == RECEIVING and (known is None or known.status != RECEIVING)
    since = row.timestamp if known is None or is_received else known.since
    doubled = frozenset() if known is None else known.doubled_with
    buckets[number] = VshardBucket(status, peer, since, row.timestamp, doubled)
    return BucketEvent(row.position, number, status), known


def _bucket_tuple_after(number: int, known: VshardBucket | None, row: ControlRow) -> bytes | None:
    if row.type in ("INSERT", "REPLACE"):
        return row.tuple
    if row.type == "DELETE":
        return None
    old: bytes | None = None if known is None else msgpack.packb([number, known.status, known.peer])
    if row.type == "UPDATE" and row.operations is not None:
        return (
            None if old is None else apply_update(old, row.operations, row.index_base, named(BUCKET_FIELDS))
        )
    if row.type == "UPSERT" and row.tuple is not None and row.operations is not None:
        return apply_upsert(old, row.tuple, row.operations, row.index_base, named(BUCKET_FIELDS))
    raise TupleError(f"a row of type {row.type} in _bucket")


def latest_time(known: datetime | None, last_row: int | None) -> datetime | None:
    """Return how far a log is read: the later of a known time, and the time of a row in microseconds since 1970."""
    if last_row is None:
        return known
    found = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=last_row)
    return found if known is None else max(known, found)


def first_awaited_departure(
    departures: Iterable[Departure], own: datetime | None, others: Mapping[str, BucketProgress]
) -> Departure | None:
    """Return the first of a replicaset's departures whose destination is not read as far; None if there is none.

    Parameters
    ----------
    departures : iterable of Departure
    own : datetime or None
        How far the replicaset's log is read, rows that wait included. It waits for `MOVE_WAIT` at most.
    others : mapping of str to BucketProgress
        The other replicasets, by uuid.

    """
    for one in departures:
        is_over = one.timestamp is None or own is None or own - one.timestamp >= MOVE_WAIT
        if not is_over and not has_arrived(one, others):
            return one
    return None


def has_arrived(departure: Departure, others: Mapping[str, BucketProgress]) -> bool:
    """Return whether the destination's log is read up to where it has the bucket, or does not belong to the cluster.

    Parameters
    ----------
    departure : Departure
    others : mapping of str to BucketProgress
        The other replicasets, by uuid.

    """
    try:
        peer = str(UUID(departure.peer))
        asked = [others[peer]] if peer in others else []
    except (TypeError, ValueError):
        asked = list(others.values())  # a name, which no log translates
    return not asked or any(_has_arrived_at(departure, one) for one in asked)


def _has_arrived_at(departure: Departure, other: BucketProgress) -> bool:
    bucket = other.buckets.get(departure.bucket)
    if departure.timestamp is None:
        return True
    if bucket is not None and bucket.status == RECEIVING:
        return _is_read_to(other.read_until, departure.timestamp + MOVE_WAIT)
    # It may have had the bucket before, and its log may not be read up to where it lost it.
    is_new = bucket is not None and (
        bucket.since is None or departure.since is None or bucket.since >= departure.since
    )
    # It may have lost the bucket again.
    return is_new or _is_read_to(other.read_until, departure.timestamp + CLOCKS_DIFFER)


def _is_read_to(read: datetime | None, moment: datetime) -> bool:
    return read is not None and read >= moment


def with_doubled_buckets(state: State, numbers: Iterable[int]) -> State:
    """Return the state with some buckets judged: which replicasets hold each of them as active at once.

    Parameters
    ----------
    state : State
        After the batch.
    numbers : iterable of int
        Buckets that changed, or that could not be judged before.

    """
    changed: dict[str, dict[int, VshardBucket]] = {}
    undecided: set[int] = set()
    for number in sorted(set(numbers)):
        holders = {
            uuid: one.buckets[number]
            for uuid, one in state.replicasets.items()
            if number in one.buckets and one.buckets[number].status in WRITABLE
        }
        pairs: dict[str, set[int]] = {}
        for one, other in combinations(sorted(holders), 2):
            if _can_judge_pair(state, holders, one, other):
                pairs.setdefault(one, set()).add(state.replicasets[other].id)
                pairs.setdefault(other, set()).add(state.replicasets[one].id)
            else:
                undecided.add(number)
        for uuid, own in state.replicasets.items():
            known, found = own.buckets.get(number), frozenset(pairs.get(uuid, ()))
            if known is not None and known.doubled_with != found:
                changed.setdefault(uuid, {})[number] = replace(known, doubled_with=found)
    replicasets = {
        uuid: replace(state.replicasets[uuid], buckets={**state.replicasets[uuid].buckets, **own})
        for uuid, own in changed.items()
    }
    return replace(state.with_replicasets(replicasets), undecided_buckets=frozenset(undecided))


def _can_judge_pair(state: State, holders: Mapping[str, VshardBucket], one: str, other: str) -> bool:
    """Whether either log is read beyond the moment at which the other replicaset got the bucket."""
    return _is_read_beyond(state, one, holders[other].since) and _is_read_beyond(
        state, other, holders[one].since
    )


def _is_read_beyond(state: State, uuid: str, moment: datetime | None) -> bool:
    read = state.replicasets[uuid].log_time
    return moment is None or (read is not None and read >= moment)


def changed_buckets(before: State, after: State) -> list[tuple[str, int, VshardBucket | None]]:
    """Return the buckets that a batch changed, each with its replicaset's uuid; None for one that it has no more."""
    found: list[tuple[str, int, VshardBucket | None]] = []
    for uuid, one in after.replicasets.items():
        known = before.replicasets[uuid].buckets if uuid in before.replicasets else {}
        if one.buckets is known:
            continue
        found += [(uuid, number, new) for number, new in one.buckets.items() if known.get(number) != new]
        found += [(uuid, number, None) for number in known if number not in one.buckets]
    return found


def newly_doubled_buckets(
    changed: Sequence[tuple[str, int, VshardBucket | None]], before: State
) -> list[int]:
    """Return the buckets that are doubled since a batch."""
    found = set()
    for uuid, number, new in changed:
        known = before.replicasets[uuid].buckets.get(number) if uuid in before.replicasets else None
        if new is not None and new.doubled_with - (known.doubled_with if known is not None else frozenset()):
            found.add(number)
    return sorted(found)
