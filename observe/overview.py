"""Reads up to which point of the logs the tables are complete, and which problems there are.

Reads the aggregator's own tables by delta-rs, without Spark. A stream may run at the same time: then some numbers may
include the running batch, which is after the epoch of the overview. Alerts are in
`observe.metrics`, checks of the rows in `observe.validation`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from config.deployment import Config
from observe.json_objects import json_object
from observe.pending_work import open_requests, pending_rows
from schemas.names import is_space_table, replicaset_label
from schemas.states import refusal_reason
from sources.spool.state import StoppedSpool
from udfs.rid.comparison import Verdict
from udfs.rid.value import EMPTY_ULID, Rid
from warehouse.copies.generations import ComparedRid, compare_warehouses, read_compared_rid
from warehouse.copies.standbys import STANDBY_FAILURES
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.newest_epoch import newest_epoch_row
from warehouse.delta.read import newest_of_each, query_rows, rows_of
from warehouse.system_tables.gaps import open_gaps


@dataclass(frozen=True)
class StandbyOverview:
    """The current state of a standby copy."""

    root: str
    """Location of the copy."""
    is_up_to_date: bool
    """Whether the copy has all epochs, except perhaps the one that is being copied."""
    state: str
    """The comparison with the primary, in words."""


def standby_overview(primary: ComparedRid, standby: WarehouseLocation) -> StandbyOverview:
    """Return the state of a standby copy, compared with the RID and the epoch of the primary."""
    try:
        standby_rid = read_compared_rid(standby)
    except STANDBY_FAILURES as error:
        return StandbyOverview(standby.root, False, f"cannot be read: {error}")
    if standby_rid.node.rid == Rid():
        return StandbyOverview(standby.root, False, "is empty")
    found = compare_warehouses(primary, standby_rid)
    behind = (primary.epoch or 0) - (standby_rid.epoch or 0)
    is_copy = found.verdict is Verdict.SAME or found.target == "b"
    if standby_rid.node.rid.incoming != EMPTY_ULID:
        return StandbyOverview(
            standby.root, False, f"a copy into it has not ended, at epoch {standby_rid.epoch}"
        )
    if is_copy and standby_rid.node.rid.primary:
        return StandbyOverview(standby.root, False, "is a primary, too")
    if is_copy:
        return StandbyOverview(
            standby.root, behind <= 1, f"{behind} epochs behind" if behind else "has all epochs"
        )
    return StandbyOverview(
        standby.root, False, "is newer" if found.target == "a" else found.verdict.replace("_", " ")
    )


def standbys_overview(config: Config) -> tuple[StandbyOverview, ...]:
    """Return the states of all standby copies of a deployment, compared with its warehouse."""
    if not config.standby.peers:
        return ()
    primary = read_compared_rid(location_of(config.warehouse, config.database))
    return tuple(
        standby_overview(primary, location_of(standby, config.database)) for standby in config.standby.peers
    )


@dataclass(frozen=True)
class Overview:
    """What `aggregator status` prints."""

    warehouse: str
    """Location of the warehouse."""
    epoch: int
    """The newest epoch."""
    committed_at: str
    """Time at which the newest epoch was committed, in UTC."""
    age_seconds: float
    """Seconds from the commit of the newest epoch until now."""
    space_table_count: int
    """Number of tables of spaces."""
    replicasets: Mapping[str, Mapping[str, Any]]
    """By replicaset uuid: a mapping with `vclock` (the settled vclock) and the replicaset's entry of the stream's
    offset, such as `leader` (the source that is read now), `file` and `position`.
    """
    open_gaps: tuple[str, ...]
    """Open gaps of the logs: missing ranges of lsns, and divergences (two different rows under one lsn)."""
    open_requests: tuple[str, ...]
    """Requests to the writer (rows of `_requests`) that it has not carried out yet."""
    pending_rows: int
    """Number of rows of `_pending`."""
    pending: tuple[str, ...]
    """What these rows wait for, and since when; one text for each replicaset and reason."""
    set_aside_rows: int
    """Number of rows of `_quarantine` that are in no table."""
    misfit_rows: int
    """Number of rows of `_quarantine` that are in their table, with NULL in a column that cannot hold the value."""
    conflict_rows: int
    """Number of rows of `_conflicts`."""
    stopped_spools: tuple[StoppedSpool, ...] = ()
    """Sources that are spools and that no daemon writes to now."""
    standbys: tuple[StandbyOverview, ...] = ()
    """The standby copies that `standby.peers` names."""
    refused_spaces: tuple[str, ...] = ()
    """Refused spaces, each with its replicasets and the reason. The rows of a refused space go to `_changelog` only; a
    table that the space already has does not change any more.
    """

    @property
    def findings(self) -> list[tuple[str, str]]:
        """The problems, each as (description, command or SQL query that helps)."""
        found = [
            (f"gap: {text}", "aggregator repair, or docs/operation.md, runbook") for text in self.open_gaps
        ]
        found += [(text, "docs/operation.md, runbook: rows wait") for text in self.pending]
        if self.set_aside_rows:
            found.append((f"{self.set_aside_rows} rows are set aside", "SELECT * FROM _quarantine"))
        for spool in self.stopped_spools:
            found.append((f"no daemon writes the spool {spool.directory}", _spool_advice(spool)))
        compare = f"aggregator rid compare {self.warehouse}"
        found += [
            (f"standby {p.root}: {p.state}", f"{compare} {p.root}")
            for p in self.standbys
            if not p.is_up_to_date
        ]
        return found


def _spool_advice(spool: StoppedSpool) -> str:
    """Return what to do about a spool that no daemon writes to."""
    start = "start aggregator subscribe"
    if not spool.keeps_logs:
        return start
    let_go = f"box.ctl.replica_gc('{spool.instance_uuid}')"
    return f"{start}, or let each master remove the logs that it keeps for it: {let_go}"


def overview_of(location: WarehouseLocation, now: datetime) -> Overview:
    """Return the state of a warehouse.

    Raises:
        WarehouseError: No batch has been committed yet.
    """
    last = newest_epoch_row(location)

    def count(table: str, where: str) -> int:
        opened = location.open(table)
        query = f"SELECT count(*) AS n FROM opened WHERE {where}"
        return 0 if opened is None else int(query_rows(opened, query)[0]["n"])

    gaps = location.open("_gaps")
    leaders = (json.loads(last["end_offset"] or "null") or {}).get("replicasets", {})
    replicasets = {
        uuid: {**leaders.get(uuid, {}), "vclock": vclock}
        for uuid, vclock in json.loads(last["vclock"] or "{}").items()
    }
    names = {uuid: str(one["leader"]) for uuid, one in leaders.items()}
    return Overview(
        warehouse=location.root,
        epoch=int(last["epoch"]),
        committed_at=last["committed_at"].isoformat(),
        age_seconds=round((now - last["committed_at"].astimezone(UTC)).total_seconds(), 1),
        space_table_count=sum(1 for name, _ in last["versions"] if is_space_table(name)),
        replicasets=replicasets,
        open_gaps=() if gaps is None else tuple(str(gap) for gap in open_gaps(rows_of(gaps))),
        open_requests=open_requests(location),
        pending_rows=count("_pending", "true"),
        pending=pending_rows(location, names),
        set_aside_rows=count("_quarantine", "misfits IS NULL"),
        misfit_rows=count("_quarantine", "misfits IS NOT NULL"),
        conflict_rows=count("_conflicts", "true"),
        refused_spaces=_refused_spaces(location, names),
    )


_JSON_NAMES = {
    "space_table_count": "spaces",
    "open_gaps": "gaps",
    "open_requests": "requests",
    "pending_rows": "waiting",
    "set_aside_rows": "set_aside",
    "misfit_rows": "misfits",
    "conflict_rows": "conflicts",
    "stopped_spools": "stopped",
    "standbys": "peers",
    "refused_spaces": "refused",
}
"""By field of `Overview`: its name in the JSON object, if it has another one there."""


def overview_as_json(overview: Overview) -> dict[str, Any]:
    """Return an overview as a JSON object; its names are those of `aggregator status --json`."""
    return json_object(overview, _JSON_NAMES)


def _refused_spaces(location: WarehouseLocation, leaders: Mapping[str, str]) -> tuple[str, ...]:
    """Return the spaces that are refused now, each with its replicasets and the reason.

    Args:
        leaders: The source that is read now, by replicaset uuid.
    """
    schema, cluster = location.open("_schema"), location.open("_cluster")
    if schema is None or cluster is None:
        return ()
    uuids = {row["replicaset_id"]: row["replicaset_uuid"] for row in rows_of(cluster)}
    found: dict[tuple[str, str], list[str]] = {}
    for row in newest_of_each(schema, ["replicaset_id", "space_id"]):
        reason = refusal_reason(row["state"])
        if reason is not None:
            uuid = str(uuids.get(row["replicaset_id"], row["replicaset_id"]))
            found.setdefault((row["name"], reason), []).append(replicaset_label(uuid, leaders.get(uuid)))
    return tuple(
        f"{name} of {', '.join(sorted(found[name, reason]))}: {reason}" for name, reason in sorted(found)
    )
