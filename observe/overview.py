"""Reads up to which point of the logs the tables are complete, and what needs attention: `aggregator status`.

`observe.facts` reads the aggregator's own tables, without Spark; `observe.deployment_problems` finds what needs
attention. Checks of the rows are in `observe.validation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from observe.facts import DeploymentFacts
from observe.json_objects import json_object
from observe.pending_work import pending_rows
from observe.standbys import StandbyOverview
from schemas.problems import Problem, problem_as_json
from sources.spool.state import StoppedSpool


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
    """By replicaset uuid: `vclock` (the settled vclock) and the replicaset's entry of the stream's offset, such as
    `leader` (the source that is read now), `file` and `position`."""
    unread_bytes: Mapping[str, int]
    """By source that is read: the bytes of its logs beyond the newest epoch."""
    open_gaps: tuple[str, ...]
    """Open gaps of the logs: missing ranges of lsns, and divergences (two different rows under one lsn)."""
    open_requests: tuple[str, ...]
    """Requests to the writer (rows of `_requests`) that it has not carried out yet."""
    pending_rows: int
    """Number of rows of `_pending`."""
    pending: tuple[str, ...]
    """What these rows wait for, and since when; one text for each replicaset and reason."""
    set_aside_rows: int
    """Number of keys, and of rows without a key, that are in no table now."""
    misfit_rows: int
    """Number of rows that are in their table, with NULL in a column that cannot hold the value."""
    conflict_rows: int
    """Number of rows of `_conflicts`."""
    refused_spaces: tuple[str, ...] = ()
    """Refused spaces, each with its replicasets and the reason. The rows of a refused space go to `_changelog` only; a
    table that the space already has does not change any more."""
    stopped_spools: tuple[StoppedSpool, ...] = ()
    """Sources that are spools and that no daemon writes to now."""
    standbys: tuple[StandbyOverview, ...] = ()
    """The standby copies that `standby.peers` names."""
    problems: tuple[Problem, ...] = ()
    """What needs attention."""


def overview_of(facts: DeploymentFacts, now: datetime) -> Overview:
    """Return the state of a warehouse, without what is outside of its tables.

    Raises:
        WarehouseError: No batch has been committed yet.
    """
    leaders = {uuid: str(one["leader"]) for uuid, one in facts.positions.items()}
    return Overview(
        warehouse=facts.location.root,
        epoch=int(facts.epoch_row["epoch"]),
        committed_at=facts.epoch_row["committed_at"].isoformat(),
        age_seconds=round((now - facts.committed_at).total_seconds(), 1),
        space_table_count=len(facts.space_tables),
        replicasets={
            uuid: {**facts.positions.get(uuid, {}), "vclock": vclock}
            for uuid, vclock in facts.vclocks.items()
        },
        unread_bytes={},
        open_gaps=tuple(map(str, facts.open_gaps)),
        open_requests=facts.open_requests,
        pending_rows=sum(rows.row_count for rows in facts.pending),
        pending=pending_rows(facts.location, leaders),
        set_aside_rows=sum(rows.row_count for rows in facts.set_aside.values()),
        misfit_rows=sum(rows.row_count for rows in facts.misfits.values()),
        conflict_rows=facts.conflict_count,
        refused_spaces=tuple(
            f"{one.name} of {', '.join(one.replicasets)}: {one.reason}" for one in facts.refused
        ),
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
    problems = [problem_as_json(one) for one in overview.problems]
    return {**json_object(overview, _JSON_NAMES), "problems": problems}
