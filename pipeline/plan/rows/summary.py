"""Summarizes a part of a log: runs of consecutive lsns, counts of rows, and the control rows.

Pure: header fields and control rows in, a `Summary` out. Planning sees nothing else of a batch's rows. Summaries are
made where the rows are decoded, and joined by `concat_summaries`; `pipeline.plan.ids.settle` and
`pipeline.plan.spaces.system_rows` use them.

Also finds rows that cannot be applied to tables: changes of an unknown type, or with content that cannot be decoded.
Such a row stops its space: the table does not change any more, and the row and the space's later rows are written to
`_changelog` only. Other spaces continue. `pipeline.plan.spaces.meanings_builder` then refuses the space.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.plan.rows.position import Int64s, LogPosition
from pipeline.plan.rows.transactions import (
    ASYNCHRONOUS,
    FLAGGED,
    Transactions,
    find_transactions,
    join_transactions,
)
from schemas.iproto import (
    CHANGE_TYPE_MAX,
    GROUP_LOCAL,
    SYSTEM_SPACE_ID_MAX,
    RequestType,
    SystemSpace,
    type_code,
    type_name,
)
from schemas.row_types import CHANGES
from schemas.space import PARTS_MAX, KeyPart, Space
from schemas.states import HELD_PREFIX
from sources.xlog.format.rows import ABSENT, ABSENT_TIMESTAMP, Headers
from udfs.keys.keys import canonical_prefixes, key_plan
from udfs.tuples.row_body import delete_ranges

LOCAL_ID = 0
"""The vclock component of an instance's local changes."""

CONTROL_SPACES = (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.CLUSTER, SystemSpace.TRUNCATE)
"""The system spaces whose rows affect a plan; rows of other system spaces only go to `_changelog`."""

LIMBO_TYPES = ("RAFT_PROMOTE", "RAFT_DEMOTE", "RAFT_CONFIRM", "RAFT_ROLLBACK")
"""The types of rows that settle synchronous transactions: commit them or roll them back."""

LIMBO_CODES = tuple(type_code(name) for name in LIMBO_TYPES)
APPLIED_TYPES = (*CHANGES, RequestType.NOP)
"""Types of rows of user spaces that are applied to tables, or have no effect (NOP)."""

_ANY_KEY = key_plan([Space(0, 0, "", "memtx", (), tuple(KeyPart(i, "scalar") for i in range(PARTS_MAX)))])
"""A key whose parts may have any type: while rows are read, the definitions of their spaces are not known yet."""

_CONTROL_COLUMNS = [
    *("type", "replica_id", "lsn", "tsn", "space_id", "index_base"),
    *("key", "tuple", "operations", "body", "timestamp"),
]


@dataclass(frozen=True)
class LsnRun:
    """Consecutive lsns of one replica id: from `first_lsn`, whose row is at `start`, to `last_lsn`."""

    replica_id: int
    first_lsn: int
    last_lsn: int
    start: LogPosition


@dataclass(frozen=True)
class ControlRow:
    """A row that affects the plan: of a control space, or one that settles synchronous transactions.

    A row that cannot be applied to its table is a control row too: `held_reason` has the reason, else None.
    """

    position: LogPosition
    type: str
    replica_id: int | None
    lsn: int | None
    tsn: int | None
    space_id: int | None
    index_base: int
    key: bytes | None
    tuple: bytes | None
    operations: bytes | None
    body: bytes | None
    timestamp: datetime | None = None
    held_reason: str | None = None


@dataclass(frozen=True)
class Summary:
    """The summary of some parts of one replicaset's log."""

    row_count: int = 0
    runs: tuple[LsnRun, ...] = ()
    """In the log order of their first rows."""
    row_counts: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    control: tuple[ControlRow, ...] = ()
    """In log order."""
    transactions: Transactions = field(default_factory=Transactions)
    """The transactions that wait for a quorum, in log order."""
    last_time_us: int | None = None
    """The latest timestamp of a row of a log, in microseconds since 1970; rows of snapshots do not count."""


def row_headers(rows: pa.RecordBatch) -> Headers:
    """Return the numeric header columns of decoded rows (`schemas.xrow.XROW_FIELDS`)."""
    kinds = rows.column("type").dictionary_encode()
    codes = np.array([type_code(name) for name in kinds.dictionary.to_pylist()], np.int32)
    return Headers(
        position=_int64_column(rows, "position", 0),
        lsn=_int64_column(rows, "lsn", ABSENT),
        tsn=_int64_column(rows, "tsn", ABSENT),
        timestamp=_int64_column(rows, "timestamp", ABSENT_TIMESTAMP),
        row=_int64_column(rows, "row", 0).astype(np.int32),
        type=codes[kinds.indices.to_numpy(zero_copy_only=False)],
        replica_id=_int64_column(rows, "replica_id", ABSENT).astype(np.int32),
        group_id=_int64_column(rows, "group_id", ABSENT).astype(np.int32),
        space_id=_int64_column(rows, "space_id", ABSENT).astype(np.int32),
        is_commit=pc.fill_null(rows.column("is_commit"), True).to_numpy(zero_copy_only=False),
        wait_ack=pc.fill_null(rows.column("wait_ack"), False).to_numpy(zero_copy_only=False),
    )


def _int64_column(rows: pa.RecordBatch, name: str, null_value: int) -> Int64s:
    column = rows.column(name).cast(pa.int64())
    if column.null_count:
        column = pc.fill_null(column, null_value)
    numbers: Int64s = column.to_numpy(zero_copy_only=False)
    return numbers


def control_rows(
    rows: pa.RecordBatch, headers: Headers, segment: int, watched_spaces: Iterable[int] = ()
) -> tuple[ControlRow, ...]:
    """Return the control rows among decoded rows (`schemas.xrow.XROW_FIELDS`).

    `watched_spaces` are ids of user spaces whose rows also affect the plan: vshard's `_bucket`, and spaces of which a
    row that cannot be applied was read before.
    """
    controls = np.isin(headers.space_id, [int(space) for space in CONTROL_SPACES])
    controls |= np.isin(headers.type, LIMBO_CODES)
    held = _held_reasons(rows, headers, np.flatnonzero(controls), watched_spaces)
    controls[list(held)] = True
    # `_schema` has the version of the schema, which shows upgrades (`pipeline.plan.ids.upgrades`).
    controls |= headers.space_id == SystemSpace.SCHEMA
    controls |= np.isin(headers.space_id, list(watched_spaces))
    at = np.flatnonzero(controls)
    found: list[dict[str, Any]] = rows.select(_CONTROL_COLUMNS).take(pa.array(at)).to_pylist()
    return tuple(
        ControlRow(
            LogPosition(segment, int(headers.position[i]), int(headers.row[i])),
            **{**row, "index_base": row["index_base"] or 0, "held_reason": held.get(int(i))},
        )
        for i, row in zip(at, found, strict=True)
    )


def summarize(
    headers: Headers, control: Sequence[ControlRow], segment: int, sync_spaces: Iterable[int] = ()
) -> Summary:
    """Summarize consecutive rows of one segment.

    `sync_spaces` are ids of spaces that are synchronous at some time in the batch: Tarantool 2.6 and 2.7 write no flag
    with their rows.
    """
    rows = len(headers.position)
    if rows == 0:
        return Summary()
    replica = np.where(headers.replica_id == ABSENT, LOCAL_ID, headers.replica_id).astype(np.int64)
    # The numbers of a snapshot's rows are not lsns: only a row with a replica id has an lsn.
    named = (headers.replica_id != ABSENT) | (headers.group_id == GROUP_LOCAL)
    lsn = np.where(named, headers.lsn, ABSENT)
    # An asynchronous transaction that queues behind a synchronous one has WAIT_SYNC alone (`src/box/txn.c`).
    listed = np.isin(headers.space_id, list(sync_spaces))
    # FLAGGED does not fit 32 bits, to which numpy would truncate it silently.
    spaces = headers.space_id.astype(np.int64)
    waits = np.where(headers.wait_ack, FLAGGED, np.where(listed, spaces, ASYNCHRONOUS))
    positions, numbers = headers.position, headers.row.astype(np.int64)
    registrations = np.flatnonzero(headers.space_id == SystemSpace.CLUSTER)
    return Summary(
        row_count=rows,
        runs=_lsn_runs(segment, positions, numbers, replica, lsn, registrations),
        row_counts=_count_rows(segment, headers),
        control=tuple(control),
        transactions=find_transactions(
            segment, positions, numbers, headers.is_commit, waits, replica, headers.tsn, lsn
        ),
        last_time_us=_latest_time(headers.timestamp[named & (headers.timestamp != ABSENT_TIMESTAMP)]),
    )


def _latest_time(times: Int64s) -> int | None:
    return int(times.max()) if times.size else None


def _lsn_runs(
    segment: int,
    positions: Int64s,
    row_indices: Int64s,
    replica_ids: Int64s,
    lsns: Int64s,
    registrations: npt.NDArray[np.intp],
) -> tuple[LsnRun, ...]:
    found: list[LsnRun] = []
    for origin in np.unique(replica_ids):
        at = np.flatnonzero((replica_ids == origin) & (lsns >= 0))
        if at.size == 0:
            continue
        own = lsns[at]
        # When an id passes to another instance, its lsns continue without a gap: so runs are cut at rows of _cluster.
        breaks = np.searchsorted(at, registrations)
        starts = np.concatenate(([0], np.flatnonzero(np.diff(own) != 1) + 1, breaks[breaks < own.size]))
        starts = np.unique(starts)
        ends = np.concatenate((starts[1:] - 1, [own.size - 1]))
        found += [
            LsnRun(
                *(int(origin), int(own[a]), int(own[b])),
                LogPosition(segment, int(positions[at[a]]), int(row_indices[at[a]])),
            )
            for a, b in zip(starts, ends, strict=True)
        ]
    return tuple(sorted(found, key=lambda run: run.start))


def _count_rows(segment: int, headers: Headers) -> Counter[tuple[int, int, str]]:
    pairs, numbers = np.unique(
        (headers.space_id.astype(np.int64) << 32) | headers.type.astype(np.int64), return_counts=True
    )
    return Counter(
        {
            (segment, int(pair) >> 32, type_name(int(pair) & 0xFFFFFFFF)): int(number)
            for pair, number in zip(pairs, numbers, strict=True)
        }
    )


def summarize_rows(
    rows: pa.RecordBatch, segment: int, sync_spaces: Iterable[int] = (), watched_spaces: Iterable[int] = ()
) -> Summary:
    """Summarize consecutive decoded rows (`schemas.xrow.XROW_FIELDS`) of one segment."""
    headers = row_headers(rows)
    return summarize(headers, control_rows(rows, headers, segment, watched_spaces), segment, sync_spaces)


def concat_summaries(summaries: Sequence[Summary]) -> Summary:
    """Return one summary of consecutive parts of a log."""
    counts: Counter[tuple[int, int, str]] = Counter()
    runs: list[LsnRun] = []
    last: dict[int, int] = {}
    registrations = [
        row.position for part in summaries for row in part.control if row.space_id == SystemSpace.CLUSTER
    ]
    for part in summaries:
        counts.update(part.row_counts)
        for run in part.runs:
            known = last.get(run.replica_id)
            if (
                known is not None
                and runs[known].last_lsn + 1 == run.first_lsn
                and runs[known].start.segment == run.start.segment
                and not any(runs[known].start < position <= run.start for position in registrations)
            ):
                runs[known] = LsnRun(run.replica_id, runs[known].first_lsn, run.last_lsn, runs[known].start)
            else:
                last[run.replica_id] = len(runs)
                runs.append(run)
    return Summary(
        row_count=sum(part.row_count for part in summaries),
        runs=tuple(runs),
        row_counts=counts,
        control=tuple(row for part in summaries for row in part.control),
        transactions=join_transactions(part.transactions for part in summaries),
        last_time_us=max(
            (part.last_time_us for part in summaries if part.last_time_us is not None), default=None
        ),
    )


def summaries_by_replicaset(parts: Iterable[tuple[str, Summary]]) -> dict[str, Summary]:
    """Join the summaries of (replicaset uuid, summary), which are in log order, for each replicaset."""
    found: dict[str, list[Summary]] = {}
    for uuid, summary in parts:
        found.setdefault(uuid, []).append(summary)
    return {uuid: concat_summaries(own) for uuid, own in found.items()}


def interleave_summaries(summaries: Sequence[Summary]) -> Summary:
    """Return one summary of the summaries of different segments, in the order of the segments' numbers."""
    counts: Counter[tuple[int, int, str]] = Counter()
    for part in summaries:
        counts.update(part.row_counts)
    waiting = (one for part in summaries for one in part.transactions.waiting)
    return Summary(
        row_count=sum(part.row_count for part in summaries),
        runs=tuple(sorted((run for part in summaries for run in part.runs), key=lambda run: run.start)),
        row_counts=counts,
        control=tuple(
            sorted((row for part in summaries for row in part.control), key=lambda row: row.position)
        ),
        transactions=Transactions(tuple(sorted(waiting, key=lambda one: one.position))),
        last_time_us=max(
            (part.last_time_us for part in summaries if part.last_time_us is not None), default=None
        ),
    )


def in_segment(summary: Summary, segment: int) -> Summary:
    """Return the summary of one segment with another number of the segment, to be interleaved with others."""

    def moved(position: LogPosition) -> LogPosition:
        return position._replace(segment=segment)

    waiting = (
        replace(
            one,
            position=moved(one.position),
            space_positions=tuple((space_id, moved(last)) for space_id, last in one.space_positions),
        )
        for one in summary.transactions.waiting
    )
    return replace(
        summary,
        runs=tuple(replace(run, start=moved(run.start)) for run in summary.runs),
        row_counts=Counter(
            {(segment, space, kind): count for (_, space, kind), count in summary.row_counts.items()}
        ),
        control=tuple(replace(row, position=moved(row.position)) for row in summary.control),
        transactions=Transactions(tuple(waiting)),
    )


def _held_reasons(
    rows: pa.RecordBatch, headers: Headers, controls: npt.NDArray[np.intp], watched_spaces: Iterable[int] = ()
) -> dict[int, str]:
    """Return why rows cannot be applied, for the first such row of each space between two control rows, by its index.

    The first such row stops its space, and a control row may start the space again. Of `watched_spaces`, all such rows
    are returned.
    """
    codes = headers.type
    of_user = (headers.space_id > SYSTEM_SPACE_ID_MAX) & (headers.group_id != GROUP_LOCAL)
    all_of = np.isin(headers.space_id, list(watched_spaces))
    changes = of_user & (codes > RequestType.SELECT) & (codes <= CHANGE_TYPE_MAX)
    found = {
        int(i): unsupported_reason(type_name(int(codes[i])))
        for i in _first_of_each_space(changes & ~_is_applied_type(codes), headers, controls, all_of)
    }
    ranges = np.flatnonzero(changes & (codes == RequestType.DELETE_RANGE))
    if len(ranges):
        errors = _range_errors(rows.column("body").take(pa.array(ranges)))
        bad = np.zeros(len(codes), np.bool_)
        bad[ranges] = pc.is_valid(errors).to_numpy(zero_copy_only=False)
        texts = dict(zip(ranges.tolist(), errors.to_pylist(), strict=True))
        found |= {
            int(i): f"{HELD_PREFIX}: DELETE_RANGE: {texts[int(i)]}"
            for i in _first_of_each_space(bad, headers, controls, all_of)
        }
    return found


def has_inapplicable_rows(rows: pa.Table) -> bool:
    """Return whether some row cannot be applied to its table: its type is not known, or its range is malformed."""
    of_user = rows.filter(pc.greater(rows["space_id"], SYSTEM_SPACE_ID_MAX)).combine_chunks()
    applied = pa.array([one.name for one in APPLIED_TYPES])
    if not pc.all(pc.is_in(of_user["type"], applied), min_count=0).as_py():
        return True
    ranges = of_user.filter(pc.equal(of_user["type"], RequestType.DELETE_RANGE.name))
    bodies = ranges["body"].combine_chunks()
    return ranges.num_rows > 0 and bool(pc.any(pc.is_valid(_range_errors(bodies))).as_py())


def _is_applied_type(codes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.isin(codes, [int(one) for one in APPLIED_TYPES])
    return found


def unsupported_reason(row_type: str) -> str:
    """Return why rows of an unsupported type cannot be applied to a table."""
    if row_type == RequestType.INSERT_ARROW.name:
        return (
            f"{HELD_PREFIX}: {row_type}: rows in Arrow batches, as engine memcs writes them, are not decoded"
        )
    return f"{HELD_PREFIX}: {row_type}: a type of row that this version does not know"


def _first_of_each_space(
    is_candidate: npt.NDArray[np.bool_],
    headers: Headers,
    controls: npt.NDArray[np.intp],
    is_watched: npt.NDArray[np.bool_],
) -> npt.NDArray[np.intp]:
    rows = np.flatnonzero(is_candidate)
    pairs = np.searchsorted(controls, rows).astype(np.int64) << 32 | headers.space_id[rows].astype(np.int64)
    _, first = np.unique(pairs, return_index=True)
    found: npt.NDArray[np.intp] = np.union1d(rows[first], rows[is_watched[rows]])
    return found


def _range_errors(bodies: pa.Array) -> pa.Array:
    ranges = delete_ranges(bodies)
    error = ranges.field("error")
    for name in ("begin", "end"):
        keys = canonical_prefixes(ranges.field(name), _ANY_KEY)
        error = pc.if_else(pc.is_null(error), keys.field("error"), error)
    return error
