"""Follows the states of vshard's buckets in each replicaset, and finds buckets that are active in two replicasets.

Pure: the rows of `_bucket` in, states and their log positions out (`schemas.vshard` explains who writes which state).
"Bucket" means vshard's bucket here, not that of a distributed batch.

A bucket is *doubled* if it is active in two replicasets at once. It may look doubled while one log is not yet read
up to the move. So this is decided only when each log is read beyond the time at which the other replicaset received the
bucket; time means the timestamps of rows.

A replicaset deletes the tuples of a bucket that it has sent away. Its rows from there on wait until the destination's
log is read, else the tables would lack these keys meanwhile (`first_awaited_departure`). The destination has received
all tuples before the source marks the bucket as sent, in all versions of vshard; since 0.1.24 it activates the bucket
after that. Two replicasets may send buckets to each other at once: then both are judged by all rows that were read of
both logs, those that wait included, so none waits for rows that the other one holds back.

Times of different servers are compared with a tolerance (`MAX_CLOCK_DIFFERENCE`). A log that gets no more rows does not
show how far it is read: `pipeline.requests.pending_moves` looks at the waiting rows again by the clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from uuid import UUID

import msgpack

from pipeline.plan.rows.position import LogPosition
from pipeline.plan.rows.summary import ControlRow
from pipeline.plan.spaces.system_rows import ControlChanges
from pipeline.state import Buckets, SpaceDefinition, State, VshardBucket
from schemas.errors import TupleError, UnsupportedError
from schemas.system_tuples import field_at, fields_of, integer_of
from schemas.vshard import (
    BUCKET_FIELDS,
    COLLECTED_STATES,
    RECEIVING,
    WRITABLE_STATES,
    bucket_row,
    is_bucket_space,
    shard_field,
)
from udfs.operations.operations import apply_update, apply_upsert
from udfs.operations.tuple_format import format_of_names


@dataclass(frozen=True)
class BucketEvent:
    """A change of a bucket's status; `status` is None if the replicaset no longer has the bucket."""

    position: LogPosition
    bucket_id: int
    status: str | None


MOVE_WAIT = timedelta(minutes=1)
"""How long a source's rows wait for the log of a bucket's destination: by the rows' timestamps, not by the clock."""

MAX_CLOCK_DIFFERENCE = timedelta(seconds=1)
"""The largest difference that is expected between the clocks of two servers."""


@dataclass(frozen=True)
class Departure:
    """The position at which a replicaset has sent a bucket away; from there on it deletes the bucket's tuples."""

    position: LogPosition
    bucket_id: int
    destination: str | None
    """The destination, as vshard names it."""
    received_at: datetime | None
    sent_at: datetime | None
    """When the replicaset received the bucket, and when it marked it as sent."""


@dataclass(frozen=True)
class BucketProgress:
    """The buckets of a replicaset, and the timestamp up to which its log is read (None if no row has one)."""

    buckets: Buckets
    read_until: datetime | None


@dataclass(frozen=True)
class ReplicasetBuckets:
    """vshard's buckets of one replicaset before and after a batch, and their changes."""

    before: Buckets = field(default_factory=dict)
    after: Buckets = field(default_factory=dict)
    events: tuple[BucketEvent, ...] = ()
    """In log order."""
    bucket_id_fields: Mapping[int, int] = field(default_factory=dict)
    """For the id of each sharded space, the index (from 0) of the field with the bucket id."""
    departures: tuple[Departure, ...] = ()
    """In log order."""

    @property
    def is_used(self) -> bool:
        """Whether the replicaset has buckets of vshard."""
        return bool(self.before or self.after or self.events)


def bucket_space_ids(
    spaces: Mapping[int, SpaceDefinition], changes: Iterable[SpaceDefinition] = ()
) -> frozenset[int]:
    """Return the ids of the spaces that are vshard's `_bucket`, among known spaces and a batch's definitions."""
    known = [rows.decoded() for rows in (*spaces.values(), *changes)]
    return frozenset(space.id for space in known if is_bucket_space(space))


def apply_bucket_rows(
    before: Buckets,
    spaces: Mapping[int, SpaceDefinition],
    control: ControlChanges,
    rows: Iterable[ControlRow],
    *,
    is_new_state: bool,
) -> ReplicasetBuckets:
    """Apply the rows of one replicaset's `_bucket`, and return the states of its buckets."""
    defined = {**spaces, **{change.space_id: change.definition for change in control.changes}}
    own = bucket_space_ids(spaces, (change.definition for change in control.changes))
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
            continue  # malformed; as with any space, the table of `_bucket` reports it
        events.append(event)
        departures += _departures(event, old, buckets.get(event.bucket_id))
    shard_fields = {i: one for i, one in fields.items() if one is not None}
    return ReplicasetBuckets(
        before, buckets, tuple(events), shard_fields, () if is_new_state else tuple(departures)
    )


def _departures(event: BucketEvent, old: VshardBucket | None, new: VshardBucket | None) -> list[Departure]:
    if (
        old is None
        or new is None
        or new.status not in COLLECTED_STATES
        or old.status in COLLECTED_STATES | {RECEIVING}
    ):
        return []  # a move has failed: its tuples are still at the source
    peer = old.peer if new.peer is None else new.peer
    return [Departure(event.position, event.bucket_id, peer, old.since, new.timestamp)]


def _apply_bucket_row(
    buckets: dict[int, VshardBucket], row: ControlRow
) -> tuple[BucketEvent, VshardBucket | None]:
    """Apply a row of `_bucket` to `buckets`; return the event, and the bucket's state before it."""
    key = fields_of(row.key if row.key is not None else row.tuple, "a key of _bucket")
    number = integer_of(field_at(key, 0, "the bucket's id"), "the bucket's id")
    known = buckets.get(number)
    new = _bucket_tuple_after(number, known, row)
    if new is None:
        buckets.pop(number, None)
        return BucketEvent(row.position, number, None), known
    bucket = bucket_row(fields_of(new, "a row of _bucket"))
    is_received = bucket.status == RECEIVING and (known is None or known.status != RECEIVING)
    since = row.timestamp if known is None or is_received else known.since
    doubled = frozenset() if known is None else known.doubled_with
    buckets[number] = VshardBucket(bucket.status, bucket.peer, since, row.timestamp, doubled)
    return BucketEvent(row.position, number, bucket.status), known


def _bucket_tuple_after(number: int, known: VshardBucket | None, row: ControlRow) -> bytes | None:
    if row.type in ("INSERT", "REPLACE"):
        return row.tuple
    if row.type == "DELETE":
        return None
    old: bytes | None = None if known is None else msgpack.packb([number, known.status, known.peer])
    if row.type == "UPDATE" and row.operations is not None:
        return (
            None
            if old is None
            else apply_update(old, _bucket_operations(row), row.index_base, format_of_names(BUCKET_FIELDS))
        )
    if row.type == "UPSERT" and row.tuple is not None and row.operations is not None:
        return apply_upsert(
            old, row.tuple, _bucket_operations(row), row.index_base, format_of_names(BUCKET_FIELDS)
        )
    raise TupleError(f"a row of type {row.type} in _bucket")


def _bucket_operations(row: ControlRow) -> bytes:
    """Return the operations of a row that change one of `BUCKET_FIELDS`; newer versions have fields after these."""
    operations = [
        operation
        for operation in msgpack.unpackb(row.operations, strict_map_key=False)
        if _is_of_bucket_field(operation[1], row.index_base)
    ]
    packed: bytes = msgpack.packb(operations)
    return packed


def _is_of_bucket_field(field: object, index_base: int) -> bool:
    if isinstance(field, int):
        return field < 0 or field - index_base < len(BUCKET_FIELDS)
    return isinstance(field, str) and field in BUCKET_FIELDS


def latest_time(known: datetime | None, row_time_us: int | None) -> datetime | None:
    """Return the later of two times, None if neither is known; `row_time_us` is in microseconds since 1970."""
    if row_time_us is None:
        return known
    found = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row_time_us)
    return found if known is None else max(known, found)


def first_awaited_departure(
    departures: Iterable[Departure], read_until: datetime | None, others: Mapping[str, BucketProgress]
) -> Departure | None:
    """Return the first departure whose destination's log is not read up to the bucket's arrival, else None.

    The replicaset's rows from this departure on wait.

    Args:
        read_until: The timestamp up to which the replicaset's own log is read, waiting rows included. A departure more
            than `MOVE_WAIT` before it is not waited for any longer.
    """
    for one in departures:
        is_over = one.sent_at is None or read_until is None or read_until - one.sent_at >= MOVE_WAIT
        if not is_over and not has_arrived(one, others):
            return one
    return None


def has_arrived(departure: Departure, others: Mapping[str, BucketProgress]) -> bool:
    """Return whether the destination's log is read up to the bucket's arrival, or is not read by this deployment."""
    try:
        peer = str(UUID(departure.destination))
        candidates = [others[peer]] if peer in others else []
    except (TypeError, ValueError):
        candidates = list(others.values())  # the peer is a name, and no log has the uuid of a name
    return not candidates or any(_has_arrived_at(departure, one) for one in candidates)


def _has_arrived_at(departure: Departure, other: BucketProgress) -> bool:
    bucket = other.buckets.get(departure.bucket_id)
    if departure.sent_at is None:
        return True
    # A state from before `departure.received_at` is older than the move: the log is not read up to the arrival.
    is_new = bucket is not None and (
        bucket.since is None
        or departure.received_at is None
        or bucket.since >= departure.received_at - MAX_CLOCK_DIFFERENCE
    )
    if bucket is not None and bucket.status == RECEIVING:
        # All tuples were received before the bucket was sent, but it is unknown which of them are read.
        wait = MAX_CLOCK_DIFFERENCE if is_new else MOVE_WAIT
        return _is_read_to(other.read_until, departure.sent_at + wait)
    # The destination may have lost the bucket again: then the timestamp decides.
    return is_new or _is_read_to(other.read_until, departure.sent_at + MAX_CLOCK_DIFFERENCE)


def _is_read_to(read_until: datetime | None, moment: datetime) -> bool:
    return read_until is not None and read_until >= moment


def with_doubled_buckets(state: State, bucket_ids: Iterable[int]) -> State:
    """Return the state in which `doubled_with` of some buckets is computed.

    `undecided_buckets` gets those of them that cannot be judged yet, since a log is not read far enough.
    """
    changed: dict[str, dict[int, VshardBucket]] = {}
    undecided: set[int] = set()
    for number in sorted(set(bucket_ids)):
        holders = {
            uuid: one.buckets[number]
            for uuid, one in state.replicasets.items()
            if number in one.buckets and one.buckets[number].status in WRITABLE_STATES
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


def _can_judge_pair(state: State, holders: Mapping[str, VshardBucket], uuid: str, other_uuid: str) -> bool:
    """Return whether each log is certainly read beyond the time at which the other replicaset received the bucket."""
    return _is_read_beyond(state, uuid, holders[other_uuid].since) and _is_read_beyond(
        state, other_uuid, holders[uuid].since
    )


def _is_read_beyond(state: State, uuid: str, moment: datetime | None) -> bool:
    read = state.replicasets[uuid].last_log_time
    return moment is None or (read is not None and read >= moment + MAX_CLOCK_DIFFERENCE)


def changed_buckets(before: State, after: State) -> list[tuple[str, int, VshardBucket | None]]:
    """Return the buckets that a batch changed, as (replicaset uuid, bucket id, state or None if it is gone)."""
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
    """Return the ids of the buckets that a batch has made doubled, or doubled with one more replicaset."""
    found = set()
    for uuid, number, new in changed:
        known = before.replicasets[uuid].buckets.get(number) if uuid in before.replicasets else None
        if new is not None and new.doubled_with - (known.doubled_with if known is not None else frozenset()):
            found.add(number)
    return sorted(found)
