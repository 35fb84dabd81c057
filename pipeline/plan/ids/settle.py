"""Decides which rows of a replicaset's log take effect in this batch, which never do, and which wait.

Pure: a summary and the vclock read so far in, a `Settlement` out. Three rules:

- A row is dropped if its lsn was read before: it is another member's copy. A row whose lsn was missing so far is not
  dropped, even if later lsns were read.
- A row after a missing lsn waits, and so do all later rows (`on_gap: hold`); with `skip`, the loss is recorded. Lsns
  are also missing if the vclock in a file's header is ahead of what was read: the file's rows may depend on these lsns.
- Rows of a synchronous transaction wait for the row that settles it, and so do all later rows: while a transaction is
  in Tarantool's limbo, all later ones queue behind it (`src/box/txn_limbo.c`).
  CONFIRM (lsn) commits the owner's transactions up to lsn. ROLLBACK (lsn) rolls back its transactions whose last row
  has this lsn or a later one. PROMOTE and DEMOTE (lsn) commit those up to lsn, and roll back the later ones.

`pipeline.changelog` writes the rows with these states.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.plan.rows.position import LogPosition
from pipeline.plan.rows.summary import LIMBO_TYPES, LOCAL_ID, ControlRow, LsnRun, Summary
from pipeline.plan.rows.transactions import Transactions, WaitingTransaction
from schemas.errors import TupleError
from schemas.iproto import LSN_MAX, BodyKey
from schemas.system_tuples import integer_of, unpacked

Vclock = Mapping[int, int]


@dataclass(frozen=True)
class LsnGap:
    """Missing lsns `first_lsn`..`last_lsn` of the instance `replica_id`; the rows after them begin at `position`."""

    replica_id: int
    first_lsn: int
    last_lsn: int
    position: LogPosition


@dataclass(frozen=True)
class RolledBackRows:
    """Rows that were rolled back: of `replica_id`, with tsns from `first_tsn` on, from `since` to before `until`."""

    replica_id: int
    first_tsn: int
    since: LogPosition
    until: LogPosition


@dataclass(frozen=True)
class Settlement:
    """Which of a replicaset's rows in a batch take effect, wait, or were rolled back."""

    low_watermarks: Mapping[tuple[int, int], int]
    """For each (segment number, replica id), the highest lsn that was read before: rows up to it are dropped."""
    waits_from: LogPosition | None = None
    """Rows from this position on wait; None if no row waits."""
    wait_reason: str | None = None
    """Why they wait."""
    rolled_back: tuple[RolledBackRows, ...] = ()
    gaps: tuple[LsnGap, ...] = ()
    bridged_gaps: tuple[LsnGap, ...] = ()
    """Gaps whose rows are missing, but whose effects are in a later snapshot."""
    read_vclock: Vclock = field(default_factory=dict)
    """The highest lsn read of each replica id, also of waiting rows; component 0 belongs to the last segment's
    instance."""
    local_lsns: Mapping[str, int] = field(default_factory=dict)
    """For each instance (by uuid) whose log was read, component 0 of its vclock."""

    @property
    def skipped_gaps(self) -> tuple[LsnGap, ...]:
        """The gaps whose rows are lost: rows after them do not wait."""
        return tuple(gap for gap in self.gaps if self.waits_from is None or gap.position < self.waits_from)

    def was_read_before(self, row: ControlRow) -> bool:
        """Return whether a row's lsn was read before."""
        if row.replica_id is None or row.lsn is None:
            return False
        return row.lsn <= self.low_watermarks.get((row.position.segment, row.replica_id), -1)

    def takes_effect(self, row: ControlRow) -> bool:
        """Return whether a row takes effect in this batch: not read before, not waiting, not rolled back."""
        if self.waits_from is not None and row.position >= self.waits_from:
            return False
        if row.replica_id is None:  # in a snapshot
            return True
        return not self.was_read_before(row) and not any(
            r.replica_id == row.replica_id
            and row.tsn is not None
            and row.tsn >= r.first_tsn
            and r.since <= row.position < r.until
            for r in self.rolled_back
        )


IsSync = Callable[[int, LogPosition], bool]
"""Returns whether a space (by id) is synchronous at a position of the log."""


def settle(
    summary: Summary,
    read_vclock: Vclock,
    instance_by_segment: Mapping[int, str | None],
    leader: str | None,
    on_gap: str,
    is_sync: IsSync,
    snapshot_segments: frozenset[int] = frozenset(),
    local_lsns: Mapping[str, int] | None = None,
    vclocks_before: Mapping[int, Vclock] | None = None,
) -> Settlement:
    """Decide which rows of one replicaset take effect, wait, or were rolled back.

    Args:
        read_vclock: The vclock of the rows that were read before these rows.
        instance_by_segment: For each segment of the summary, in log order, the uuid of the instance that wrote it.
        leader: The instance whose log was read last: component 0 of `read_vclock` belongs to it.
        is_sync: Called with (space id, position) for rows without a flag for synchronous transactions.
        snapshot_segments: Segments that are snapshots. Their rows are committed, and numbered from 1 without regard to
            the lsns of the logs (`src/box/memtx_engine.cc`, `checkpoint_write_row`), so the rules do not apply to them.
        vclocks_before: For each segment, the vclock of the rows before it (`LogSegment.vclock_before`).
    """
    summary = _without_segments(summary, snapshot_segments)
    logs = {
        segment: instance
        for segment, instance in instance_by_segment.items()
        if segment not in snapshot_segments
    }
    local = dict(local_lsns or {})
    holds_gaps = on_gap == "hold"
    low_watermarks, gaps, vclock = _settle_lsns(
        summary.runs, dict(read_vclock), logs, leader, local, vclocks_before or {}, holds_gaps=holds_gaps
    )
    first_waiting, rolled_back, unreadable = _settle_limbo(summary, low_watermarks, is_sync)
    holds: list[tuple[LogPosition, str]] = [] if unreadable is None else [unreadable]
    if gaps and holds_gaps:
        first = min(gaps, key=lambda gap: gap.position)
        holds.append(
            (
                first.position,
                f"lsn {first.first_lsn}..{first.last_lsn} of replica id {first.replica_id} is missing",
            )
        )
    if first_waiting is not None:
        name = f"{first_waiting.replica_id}:{first_waiting.tsn}"
        holds.append((first_waiting.position, f"transaction {name} is not confirmed"))
    hold, reason = min(holds) if holds else (None, None)
    return Settlement(low_watermarks, hold, reason, rolled_back, gaps, (), vclock, local)


def _without_segments(summary: Summary, segments: frozenset[int]) -> Summary:
    runs = tuple(run for run in summary.runs if run.start.segment not in segments)
    waiting = tuple(one for one in summary.transactions.waiting if one.position.segment not in segments)
    return replace(summary, runs=runs, transactions=Transactions(waiting))


def _settle_lsns(
    runs: Sequence[LsnRun],
    vclock: dict[int, int],
    instance_by_segment: Mapping[int, str | None],
    leader: str | None,
    local_lsns: dict[str, int],
    vclocks_before: Mapping[int, Vclock],
    *,
    holds_gaps: bool,
) -> tuple[dict[tuple[int, int], int], tuple[LsnGap, ...], dict[int, int]]:
    """Return the low watermarks, the gaps, and the vclock after the runs; also updates `local_lsns`."""
    low_watermarks: dict[tuple[int, int], int] = {}
    gaps: list[LsnGap] = []
    # Lsns that are missing before a file count as read only where their loss is accepted.
    missing: dict[int, int] = {} if holds_gaps else vclock
    by_segment: dict[int, list[LsnRun]] = {segment: [] for segment in instance_by_segment}
    for run in runs:
        by_segment[run.start.segment].append(run)
    for segment, instance in instance_by_segment.items():
        if instance in local_lsns:
            vclock[LOCAL_ID] = local_lsns[instance]
        elif instance != leader:
            vclock.pop(LOCAL_ID, None)
        leader = instance
        # A row that was missing so far has not been read, and waits too.
        open_gaps = [gap for gap in gaps if holds_gaps and _is_in_gap(by_segment[segment], gap)]
        for origin, lsn in vclock.items():
            firsts = (gap.first_lsn for gap in open_gaps if gap.replica_id == origin)
            low_watermarks[segment, origin] = min(firsts, default=lsn + 1) - 1
        if by_segment[segment]:
            begin = LogPosition(segment, 0, 0)
            for origin, lsn in sorted(vclocks_before.get(segment, {}).items()):
                known = max(vclock.get(origin, 0), missing.get(origin, 0))
                if lsn > known:
                    gaps.append(LsnGap(origin, known + 1, lsn, begin))
                    missing[origin] = lsn
        for run in by_segment[segment]:
            known = max(vclock.get(run.replica_id, 0), missing.get(run.replica_id, 0))
            if run.first_lsn > known + 1 and run.replica_id != LOCAL_ID:
                gaps.append(LsnGap(run.replica_id, known + 1, run.first_lsn - 1, run.start))
            vclock[run.replica_id] = max(vclock.get(run.replica_id, 0), run.last_lsn)
        if instance is not None and LOCAL_ID in vclock:
            local_lsns[instance] = vclock[LOCAL_ID]
    return low_watermarks, tuple(gaps), vclock


def _is_in_gap(runs: Iterable[LsnRun], gap: LsnGap) -> bool:
    return any(
        run.replica_id == gap.replica_id and run.first_lsn <= gap.last_lsn and run.last_lsn >= gap.first_lsn
        for run in runs
    )


def _settle_limbo(
    summary: Summary, low_watermarks: Mapping[tuple[int, int], int], is_sync: IsSync
) -> tuple[WaitingTransaction | None, tuple[RolledBackRows, ...], tuple[LogPosition, str] | None]:
    """Return the first transaction that still waits, the rolled-back rows, and (position, error) of an unreadable row.

    The first and the third are None if there is none. All rows from an unreadable row on wait, since it may settle any
    transaction.
    """
    waiting: list[WaitingTransaction] = []
    rolled_back: list[RolledBackRows] = []
    # Another member's copy of a ROLLBACK must not roll back what its owner wrote after it.
    settling = [
        row
        for row in summary.control
        if row.type in LIMBO_TYPES
        and (
            row.lsn is None
            or row.lsn > low_watermarks.get((row.position.segment, row.replica_id or LOCAL_ID), -1)
        )
    ]
    fresh = [
        one
        for one in summary.transactions.waiting
        if one.last_lsn > low_watermarks.get((one.position.segment, one.replica_id), -1)
        and (
            not one.space_positions
            or any(is_sync(space_id, position) for space_id, position in one.space_positions)
        )
    ]
    events: list[tuple[LogPosition, WaitingTransaction | ControlRow]] = [(one.position, one) for one in fresh]
    events += [(row.position, row) for row in settling]
    for _, event in sorted(events, key=lambda pair: pair[0]):
        if isinstance(event, WaitingTransaction):
            waiting.append(event)
        else:
            try:
                waiting, gone = _apply_limbo_row(waiting, event)
            except TupleError as error:
                return (waiting[0] if waiting else None), tuple(rolled_back), (event.position, error.reason)
            rolled_back += [] if gone is None else [gone]
    return (waiting[0] if waiting else None), tuple(rolled_back), None


def _owner_and_lsn(event: ControlRow) -> tuple[int, int]:
    try:
        body = unpacked(event.body) if event.body else {}
    except TupleError as error:
        raise TupleError(f"{event.type}: {error.reason}") from None
    if not isinstance(body, dict):
        raise TupleError(f"{event.type}: its body is not a map")
    owner = body.get(BodyKey.REPLICA_ID, event.replica_id or LOCAL_ID)
    return (
        integer_of(owner, f"{event.type}: the replica id of the owner"),
        integer_of(body.get(BodyKey.LSN, 0), f"{event.type}: the lsn", 0, LSN_MAX),
    )


def _apply_limbo_row(
    waiting: list[WaitingTransaction], event: ControlRow
) -> tuple[list[WaitingTransaction], RolledBackRows | None]:
    """Return the transactions that still wait after a row that settles some, and the rows that it rolls back."""
    owner, lsn = _owner_and_lsn(event)
    # ROLLBACK names the first transaction to roll back, and settles none before it; the others name the last to commit.
    below = lsn - 1 if event.type == "RAFT_ROLLBACK" else lsn
    if event.type != "RAFT_ROLLBACK":
        waiting = [one for one in waiting if one.replica_id != owner or one.last_lsn > lsn]
    undone = [one for one in waiting if one.replica_id == owner and one.last_lsn > below]
    if event.type == "RAFT_CONFIRM" or not undone:
        return waiting, None
    first = min(undone, key=lambda one: one.tsn)
    rest = [one for one in waiting if one not in undone]
    return rest, RolledBackRows(owner, first.tsn, first.position, event.position)
