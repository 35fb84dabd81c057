"""Plans how a member's snapshot replaces a replicaset or some of its spaces, and which rows are applied again after it.

The snapshot becomes a generation of the tables (`pipeline.plan.generation`) although the tables are newer. The rows of
`_changelog` after its vclock are applied again after it, in the same batch and in their first order. So it matters
neither when the snapshot was taken nor how far the stream is. `_changelog` gets the snapshot's rows, and keeps the rows
that were settled first; divergences before the snapshot become `healed` in `_gaps`. Rows of a diverged instance are
reapplied only if the member's log has them too: the others belong to the end of a log that the member lost, and `_gaps`
keeps them as an open divergence.

`pipeline.requests.snapshots` chooses the snapshot and reads it.
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
from pipeline.changelog.own_ids import lsns_of_ids, replica_ids_in_replicaset
from pipeline.changelog.rows import CHANGELOG_ARROW
from pipeline.plan.control import row_space_id
from pipeline.plan.position import LogSegment
from pipeline.plan.summary import CONTROL_SPACES, Summary, has_inapplicable_rows
from pipeline.plan.tables import CHANGE_TYPES
from pipeline.retention.changelog import check_rows_kept
from pipeline.state import ReplicasetState
from schemas.errors import UnsupportedError
from schemas.iproto import SystemSpace
from schemas.states import GapKind, GapState, RowState
from sources.xlog.format.vclock import Vclock, is_at_most
from warehouse.commits import OpenTables
from warehouse.data_files import in_schema, opened
from warehouse.gaps import KEY
from warehouse.read import newest_of_each

Rows = list[Mapping[str, Any]]
"""Rows of `_gaps`."""


@dataclass(frozen=True)
class Healing:
    """What a batch does to heal a replicaset by a snapshot, in addition to reading the snapshot.

    Parameters
    ----------
    uuid : str
        The uuid of the replicaset.
    reapplied : sequence of pyarrow.Table
        Rows of `_changelog` that are not in the snapshot, in log order.
    counts : mapping of (int, str) to int
        The number of these rows by (space id, type).
    healed : sequence of dict
        Rows of `_gaps`: divergences that the snapshot heals.
    left_open : sequence of dict
        Rows of `_gaps`: divergences that only a newer snapshot heals.
    newly_open : sequence of dict
        Rows to add to `_gaps`: lsns that the member has lost. Their rows now leave the tables, and no open divergence
        contains them yet.
    spaces : frozenset of int, optional
        The spaces that the snapshot replaces; by default it replaces all.

    """

    uuid: str
    reapplied: Sequence[pa.Table]
    counts: Mapping[tuple[int, str], int]
    healed: Sequence[Mapping[str, Any]]
    left_open: Sequence[Mapping[str, Any]] = ()
    newly_open: Sequence[Mapping[str, Any]] = ()
    spaces: frozenset[int] | None = None

    def with_healing_set(self, segments: Sequence[LogSegment]) -> list[LogSegment]:
        """Return the segments with `is_healing` and `replaced_spaces` set."""
        return [replace(one, is_healing=True, replaced_spaces=self.spaces) for one in segments]

    def add_counts(self, summaries: Mapping[str, Summary]) -> dict[str, Summary]:
        """Return the summaries with the counts of the reapplied rows added."""
        own = summaries[self.uuid]
        counts = Counter({(0, space_id, kind): rows for (space_id, kind), rows in self.counts.items()})
        return {**summaries, self.uuid: replace(own, row_counts=own.row_counts + counts)}

    def gap_rows(self, epoch: int) -> list[dict[str, Any]]:
        """Return the rows to append to `_gaps`."""
        now = {"epoch": epoch, "found_at": datetime.now(UTC)}
        healed = [{**row, **now, "state": GapState.HEALED} for row in self.healed]
        return [*healed, *({**row, **now} for row in self.newly_open)]


ReadLog = Callable[[], pa.Table]
"""Returns the rows of a member's log after its snapshot, as `LSN_HASHES`, in the replicaset's ids."""


def plan_healing(
    tables: OpenTables,
    one: ReplicasetState,
    source: str,
    vclock: Vclock,
    read_log: ReadLog,
    spaces: frozenset[int] | None = None,
) -> Healing:
    """Plan a healing by a snapshot.

    Parameters
    ----------
    tables : OpenTables
    one : ReplicasetState
        The state of the replicaset.
    source : str
        The source of the snapshot.
    vclock : mapping of int to int
        The vclock of the snapshot, in the source's ids, without component 0.
    read_log : callable
        Called if the member may have lost rows of `_changelog`.
    spaces : frozenset of int, optional
        The spaces that the snapshot replaces; by default it replaces all, and heals divergences.

    Raises
    ------
    UnsupportedError
        The snapshot cannot be used, or not yet.

    """
    ids = one.id_translations.get(source, {})
    covered = {ids.get(i, i): lsn for i, lsn in vclock.items()}
    where = {"source": source, "replicaset": one.uuid}
    if one.has_waiting_rows:
        raise UnsupportedError("rows of it wait, see _pending: they must be applied first", **where)
    if not is_at_most(covered, one.settled):
        raise UnsupportedError(
            f"the snapshot is at {covered}, the tables are at {dict(one.settled)}",
            **where,
            advice="wait until the stream has reached it, then ask again",
        )
    check_rows_kept(tables, one, covered, source)
    rows = _later_rows(tables, one, covered)
    if _has_control(rows, spaces):
        raise UnsupportedError(
            "spaces, indexes or members were changed since the snapshot, or a space was truncated",
            **where,
            advice="take a new one: box.snapshot()",
        )
    if has_inapplicable_rows(_of_spaces(rows, spaces)):
        raise UnsupportedError(
            "there are rows since the snapshot that cannot be applied",
            **where,
            advice="take a new one: box.snapshot()",
        )
    later = rows.filter(pc.is_in(rows["type"], pa.array(CHANGE_TYPES)))
    healed, left = _open_divergences(tables, one, covered)
    lost = _is_lost(later, one, [*healed, *left], read_log)
    newly_open = _lost_ranges(later.filter(pa.array(lost)), one, [*healed, *left], left)
    later = later.filter(pa.array(~lost))
    later = _of_spaces(later, spaces)
    if spaces is not None:
        healed, left, newly_open = [], [*left, *healed, *newly_open], []
    numbers = later.group_by(["space_id", "type"]).aggregate([([], "count_all")]).to_pylist()
    counts = {(row["space_id"], row["type"]): row["count_all"] for row in numbers}
    return Healing(one.uuid, (later,), counts, healed, left, newly_open, spaces)


def _of_spaces(rows: pa.Table, spaces: frozenset[int] | None) -> pa.Table:
    """Return the rows of some spaces, of all by default."""
    return (
        rows
        if spaces is None
        else rows.filter(pc.is_in(rows["space_id"], pa.array(sorted(spaces), pa.int32())))
    )


def _has_control(rows: pa.Table, spaces: frozenset[int] | None) -> bool:
    """Return whether rows change members, or define or truncate one of the spaces (any space for None)."""
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
    """Return for each row whether its instance has diverged and the row is not in the member's log."""
    lost = np.zeros(rows.num_rows, np.bool_)
    diverged = {_translated_id(one, row) for row in divergences}
    ids, lsns, hashes = replica_ids_in_replicaset(rows, one), rows["lsn"].to_numpy(), rows["hash"].to_numpy()
    origins = {replica_id: ids == replica_id for replica_id in sorted(diverged)}
    if not any(own.any() for own in origins.values()):
        return lost
    known = read_log()
    known_ids, known_lsns, known_hashes = (known[name].to_numpy() for name in LSN_HASHES.names)
    for replica_id, own in origins.items():
        theirs = known_ids == replica_id
        order = np.argsort(known_lsns[theirs], kind="stable")
        numbers, bodies = known_lsns[theirs][order], known_hashes[theirs][order]
        lost[own] = True
        if len(numbers):
            indices = np.minimum(np.searchsorted(numbers, lsns[own]), len(numbers) - 1)
            lost[own] = (numbers[indices] != lsns[own]) | (bodies[indices] != hashes[own])
    return lost


def _lost_ranges(lost: pa.Table, one: ReplicasetState, divergences: Rows, left: Rows) -> Rows:
    """Return rows of `_gaps` for lost rows of instances without an open divergence (`left`) that contains them."""
    found: Rows = []
    ids, lsns = replica_ids_in_replicaset(lost, one), lost["lsn"].to_numpy()
    named = {_translated_id(one, row): row for row in divergences}
    for replica_id, row in sorted(named.items()):
        own = lsns[ids == replica_id]
        if not len(own):
            continue
        first, last = int(own.min()), int(own.max())
        is_named = any(
            _translated_id(one, other) == replica_id
            and other["first_lsn"] <= first
            and last <= other["last_lsn"]
            for other in left
        )
        if not is_named:
            found.append({**row, "first_lsn": first, "last_lsn": last, "state": GapState.OPEN})
    return found


def _later_rows(tables: OpenTables, one: ReplicasetState, covered: Vclock) -> pa.Table:
    """Return the rows of `_changelog` from a replicaset's logs that are after a snapshot, in log order."""
    parts = []
    for file in tables.files("_changelog"):
        with opened(tables.location, "_changelog", file.path) as parquet:
            rows = in_schema(parquet.read(columns=CHANGELOG_ARROW.names), CHANGELOG_ARROW)
        mask = pc.and_(pc.equal(rows["replicaset_id"], one.id), pc.equal(rows["state"], RowState.COMMITTED))
        own = rows.filter(pc.and_(mask, pc.ends_with(rows["file"], ".xlog")))
        parts.append(own.filter(pa.array(_is_later(own, one, covered))))
    whole = pa.concat_tables(parts) if parts else CHANGELOG_ARROW.empty_table()
    order = [(name, "ascending") for name in ("epoch", "segment", "position", "row")]
    return whole.take(pc.sort_indices(whole, sort_keys=order)).combine_chunks()


def _is_later(rows: pa.Table, one: ReplicasetState, covered: Vclock) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each row whether its lsn is above the snapshot's lsn of its replica id.

    This holds for all instances that had the id, since each continues the lsns of the one before.
    """
    later: np.ndarray[Any, np.dtype[np.bool_]]
    later = rows["lsn"].to_numpy() > lsns_of_ids(replica_ids_in_replicaset(rows, one), covered)
    return later


def _open_divergences(tables: OpenTables, one: ReplicasetState, covered: Vclock) -> tuple[Rows, Rows]:
    """Return the open divergences of a replicaset: those that a snapshot covers, and the others."""
    healed: Rows = []
    left: Rows = []
    for row in newest_of_each(tables.open("_gaps"), KEY):
        if (
            row["kind"] == GapKind.DIVERGENCE
            and row["state"] == GapState.OPEN
            and row["replicaset_id"] == one.id
        ):
            is_covered = row["last_lsn"] <= covered.get(_translated_id(one, row), 0)
            (healed if is_covered else left).append(row)
    return healed, left


def _translated_id(one: ReplicasetState, row: Mapping[str, Any]) -> int:
    """Return the replica id in a row of `_gaps`, in the replicaset's ids."""
    replica_id = int(row["local_id"])
    return one.id_translations.get(row["source"] or "", {}).get(replica_id, replica_id)
