"""A member's snapshot replaces a replicaset's state, or some of its spaces, and later rows are applied once more.

The snapshot becomes a generation of the tables (`pipeline.plan.generation`) although they are ahead of it; the rows
that `_changelog` has from behind its vclock follow it within the same batch, in the order in which they were applied.
So it matters neither when the snapshot was taken nor how far the stream is. `_changelog` gets the snapshot's rows;
what was settled first stays in it, and the divergences that the snapshot is behind of become `healed` in `_gaps`.
Rows of an instance that diverged are applied once more only where the member's log has them too: the others are of the
tail that the member lost, and `_gaps` names them as a divergence that is still open.

Not here: which snapshot, and reading it (`pipeline.requests.heal`, `pipeline.requests.take_again`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.changelog.divergence import LSN_HASHES
from pipeline.changelog.rows import CHANGELOG_ARROW
from pipeline.plan.control import row_space_id
from pipeline.plan.held_rows import has_held_rows
from pipeline.plan.position import LogSegment
from pipeline.plan.summary import CONTROL_SPACES, Summary
from pipeline.plan.tables import CHANGE_TYPES
from pipeline.retention.changelog import check_kept
from pipeline.state import ReplicasetState
from schemas.errors import UnsupportedError
from schemas.iproto import SystemSpace
from schemas.states import GapKind, GapState, RowState
from sources.xlog.format.vclock import Vclock, not_beyond
from warehouse.commits import OpenTables
from warehouse.data_files import in_schema, opened
from warehouse.gaps import KEY
from warehouse.read import newest_of_each

Rows = list[Mapping[str, Any]]


@dataclass(frozen=True)
class Healing:
    """What a batch that heals does in addition to reading its snapshot.

    Parameters
    ----------
    uuid : str
        The replicaset's.
    again : sequence of pyarrow.Table
        Rows of `_changelog` that the snapshot is not ahead of, in the order of the log.
    counts : mapping of (int, str) to int
        Of them, by space id and type.
    closed : sequence of dict
        Rows of `_gaps`, without their epoch.
    left : sequence of dict
        Those of divergences that the snapshot is not behind of: a newer one heals them.
    opened : sequence of dict
        Rows of `_gaps`, without their epoch: what the tables have lost of a tail that the member lost, and that no
        divergence names yet.
    spaces : frozenset of int, optional
        The spaces that the snapshot replaces; by default it replaces all.

    """

    uuid: str
    again: Sequence[pa.Table]
    counts: Mapping[tuple[int, str], int]
    closed: Sequence[Mapping[str, Any]]
    left: Sequence[Mapping[str, Any]] = ()
    opened: Sequence[Mapping[str, Any]] = ()
    spaces: frozenset[int] | None = None

    def of_segments(self, segments: Sequence[LogSegment]) -> list[LogSegment]:
        """Return the segments as those of a snapshot that heals."""
        return [replace(one, heals=True, spaces=self.spaces) for one in segments]

    def of_summaries(self, summaries: Mapping[str, Summary]) -> dict[str, Summary]:
        """Return the summaries with the counts of what is applied once more."""
        own = summaries[self.uuid]
        counts = Counter({(0, space_id, kind): rows for (space_id, kind), rows in self.counts.items()})
        return {**summaries, self.uuid: replace(own, counts=own.counts + counts)}

    def gap_rows(self, epoch: int) -> list[dict[str, Any]]:
        """Return the rows that are appended to `_gaps`."""
        now = {"epoch": epoch, "found_at": datetime.now(UTC)}
        closed = [{**row, **now, "state": GapState.HEALED} for row in self.closed]
        return [*closed, *({**row, **now} for row in self.opened)]


ReadLog = Callable[[], pa.Table]
"""Returns the rows of a member's log after its snapshot, as `LSN_HASHES`, in the replicaset's ids."""


def healing_of(
    tables: OpenTables,
    one: ReplicasetState,
    source: str,
    vclock: Vclock,
    read_log: ReadLog,
    spaces: frozenset[int] | None = None,
) -> Healing:
    """Return what there is to do behind a snapshot.

    Parameters
    ----------
    tables : OpenTables
    one : ReplicasetState
    source : str
        Whose snapshot it is.
    vclock : mapping of int to int
        The snapshot's, in the source's ids, without component 0.
    read_log : callable
        Called where rows of `_changelog` may be of a tail that the member lost.
    spaces : frozenset of int, optional
        The spaces that the snapshot replaces; by default it replaces all, and closes divergences.

    Raises
    ------
    UnsupportedError
        The tables cannot become what the snapshot says: not yet, or not by it.

    """
    ids = one.id_translations.get(source, {})
    covered = {ids.get(i, i): lsn for i, lsn in vclock.items()}
    where = {"source": source, "replicaset": one.uuid}
    if one.has_waiting_rows:
        raise UnsupportedError("rows of it wait, see _pending: they come first", **where)
    if not not_beyond(covered, one.settled):
        raise UnsupportedError(
            f"the snapshot is at {covered}, the tables are at {dict(one.settled)}",
            **where,
            advice="let the stream come to it, then ask again",
        )
    check_kept(tables, one, covered, source)
    rows = _later_rows(tables, one, covered)
    if _has_control(rows, spaces):
        raise UnsupportedError(
            "spaces, indexes or members were changed since the snapshot, or a space was truncated",
            **where,
            advice="take a new one: box.snapshot()",
        )
    if has_held_rows(_of_spaces(rows, spaces)):
        raise UnsupportedError(
            "there are rows since the snapshot that cannot be followed",
            **where,
            advice="take a new one: box.snapshot()",
        )
    later = rows.filter(pc.is_in(rows["type"], pa.array(CHANGE_TYPES)))
    closed, left = _divergences(tables, one, covered)
    lost = _is_lost(later, one, [*closed, *left], read_log)
    opened_ = _lost_ranges(later.filter(pa.array(lost)), one, [*closed, *left], left)
    later = later.filter(pa.array(~lost))
    later = _of_spaces(later, spaces)
    if spaces is not None:
        closed, left, opened_ = [], [*left, *closed, *opened_], []
    numbers = later.group_by(["space_id", "type"]).aggregate([([], "count_all")]).to_pylist()
    counts = {(row["space_id"], row["type"]): row["count_all"] for row in numbers}
    return Healing(one.uuid, (later,), counts, closed, left, opened_, spaces)


def _of_spaces(rows: pa.Table, spaces: frozenset[int] | None) -> pa.Table:
    """Return the rows of some spaces, of all by default."""
    return (
        rows
        if spaces is None
        else rows.filter(pc.is_in(rows["space_id"], pa.array(sorted(spaces), pa.int32())))
    )


def _has_control(rows: pa.Table, spaces: frozenset[int] | None) -> bool:
    """Whether rows change members, or the definition or all tuples of a space that matters."""
    control = rows.filter(pc.is_in(rows["space_id"], pa.array([int(s) for s in CONTROL_SPACES], pa.int32())))
    if spaces is None:
        return bool(control.num_rows)
    return any(
        row["space_id"] == SystemSpace.CLUSTER or row_space_id(row["key"], row["tuple"]) in spaces
        for row in control.select(["space_id", "key", "tuple"]).to_pylist()
    )


def _is_lost(
    rows: pa.Table, one: ReplicasetState, divergences: Rows, read_log: ReadLog
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows of instances that diverged are not in the member's log."""
    lost = np.zeros(rows.num_rows, np.bool_)
    diverged = {_own_id(one, row) for row in divergences}
    ids, lsns, hashes = (rows[name].to_numpy() for name in ("global_id", "lsn", "hash"))
    origins = {
        local_id: np.isin(ids, [entry.global_id for entry in one.applier_map if entry.local_id == local_id])
        for local_id in sorted(diverged)
    }
    if not any(own.any() for own in origins.values()):
        return lost
    known = read_log()
    known_ids, known_lsns, known_hashes = (known[name].to_numpy() for name in LSN_HASHES.names)
    for local_id, own in origins.items():
        theirs = known_ids == local_id
        order = np.argsort(known_lsns[theirs], kind="stable")
        numbers, bodies = known_lsns[theirs][order], known_hashes[theirs][order]
        lost[own] = True
        if len(numbers):
            places = np.minimum(np.searchsorted(numbers, lsns[own]), len(numbers) - 1)
            lost[own] = (numbers[places] != lsns[own]) | (bodies[places] != hashes[own])
    return lost


def _lost_ranges(lost: pa.Table, one: ReplicasetState, divergences: Rows, left: Rows) -> Rows:
    """Return rows of `_gaps` for rows that are not applied any more and are in no open divergence."""
    found: Rows = []
    ids, lsns = lost["global_id"].to_numpy(), lost["lsn"].to_numpy()
    named = {_own_id(one, row): row for row in divergences}
    for local_id, row in sorted(named.items()):
        globals_ = [entry.global_id for entry in one.applier_map if entry.local_id == local_id]
        own = lsns[np.isin(ids, globals_)]
        if not len(own):
            continue
        first, last = int(own.min()), int(own.max())
        is_named = any(
            _own_id(one, other) == local_id and other["first_lsn"] <= first and last <= other["last_lsn"]
            for other in left
        )
        if not is_named:
            found.append({**row, "first_lsn": first, "last_lsn": last, "state": GapState.OPEN})
    return found


def _later_rows(tables: OpenTables, one: ReplicasetState, covered: Vclock) -> pa.Table:
    """Return the rows of a replicaset's logs that a snapshot does not have, in the order of the log."""
    parts = []
    for file in tables.files("_changelog"):
        with opened(tables.place, "_changelog", file.path) as parquet:
            rows = in_schema(parquet.read(columns=CHANGELOG_ARROW.names), CHANGELOG_ARROW)
        mask = pc.and_(pc.equal(rows["replicaset_id"], one.id), pc.equal(rows["state"], RowState.COMMITTED))
        own = rows.filter(pc.and_(mask, pc.ends_with(rows["file"], ".xlog")))
        parts.append(own.filter(pa.array(_is_later(own, one, covered))))
    whole = pa.concat_tables(parts) if parts else CHANGELOG_ARROW.empty_table()
    order = [(name, "ascending") for name in ("epoch", "segment", "position", "row")]
    return whole.take(pc.sort_indices(whole, sort_keys=order)).combine_chunks()


def _is_later(rows: pa.Table, one: ReplicasetState, covered: Vclock) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows have lsns above the snapshot's; an id continues the lsns of its former instance."""
    low = {entry.global_id: covered.get(entry.local_id, 0) for entry in one.applier_map}
    ids = rows["global_id"].to_numpy()
    found = np.zeros(rows.num_rows, np.int64)
    for global_id, lsn in low.items():
        found[ids == global_id] = lsn
    later: np.ndarray[Any, np.dtype[np.bool_]] = rows["lsn"].to_numpy() > found
    return later


def _divergences(tables: OpenTables, one: ReplicasetState, covered: Vclock) -> tuple[Rows, Rows]:
    """Return the open divergences of a replicaset: those that a snapshot is behind of, and the others."""
    closed: Rows = []
    left: Rows = []
    for row in newest_of_each(tables.open("_gaps"), KEY):
        if (
            row["kind"] == GapKind.DIVERGENCE
            and row["state"] == GapState.OPEN
            and row["replicaset_id"] == one.id
        ):
            is_behind = row["last_lsn"] <= covered.get(_own_id(one, row), 0)
            (closed if is_behind else left).append(row)
    return closed, left


def _own_id(one: ReplicasetState, row: Mapping[str, Any]) -> int:
    local_id = int(row["local_id"])
    return one.id_translations.get(row["source"] or "", {}).get(local_id, local_id)
