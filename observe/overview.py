"""Reads up to which point of the logs the tables are complete, and what needs attention: `aggregator status`.

`observe.facts` reads the aggregator's own tables, without Spark; `observe.deployment_problems` finds what needs
attention. Checks of the rows are in `observe.validation`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from observe.facts import DeploymentFacts
from observe.pending_work import pending_rows
from observe.standbys import StandbyOverview
from observe.write_costs import WriteCosts
from schemas.problems import Problem, problem_as_json
from sources.spool.state import StoppedSpool


@dataclass(frozen=True)
class Overview:
    """What `aggregator status` prints."""

    warehouse: str
    epoch: int
    committed_at: str
    """Time at which the newest epoch was committed, in UTC."""
    age_seconds: float
    """Seconds from the commit of the newest epoch until now."""
    spaces: int
    replicasets: Mapping[str, Mapping[str, Any]]
    """By replicaset uuid: `vclock` (the settled vclock) and the replicaset's entry of the stream's offset, such as
    `leader` (the source that is read now), `file` and `position`."""
    unread_bytes: Mapping[str, int]
    """By source that is read: the bytes of its logs beyond the newest epoch."""
    gaps: tuple[str, ...]
    """Open gaps of the logs: missing ranges of lsns, and divergences (two different rows under one lsn)."""
    requests: tuple[str, ...]
    """Requests to the writer (rows of `_requests`) that it has not carried out yet."""
    waiting: int
    """Number of rows of `_pending`."""
    pending: tuple[str, ...]
    """What these rows wait for, and since when; one text for each replicaset and reason."""
    set_aside: int
    """Number of keys, and of rows without a key, that are in no table now."""
    misfits: int
    """Number of rows that are in their table, with NULL in a column that cannot hold the value."""
    conflicts: int
    refused: tuple[str, ...] = ()
    """Refused spaces, each with its replicasets and the reason. The rows of a refused space go to `_changelog` only; a
    table that the space already has does not change any more."""
    stopped: tuple[StoppedSpool, ...] = ()
    """Sources that are spools and that no daemon writes to now."""
    peers: tuple[StandbyOverview, ...] = ()
    """The standby copies that `standby.peers` names."""
    costs: WriteCosts | None = None
    """What batches cost, as this machine knows it."""
    proven_at: str | None = None
    """Since when all compared tables were equal to their servers'; None without a section `prove`, and before its first
    round has compared all of them."""
    problems: tuple[Problem, ...] = ()


def overview_of(facts: DeploymentFacts, now: datetime) -> Overview:
    """Return the state of a warehouse's tables; raise WarehouseError if no batch has been committed yet."""
    leaders = {uuid: str(one["leader"]) for uuid, one in facts.positions.items()}
    return Overview(
        warehouse=facts.location.root,
        epoch=int(facts.epoch_row["epoch"]),
        committed_at=facts.epoch_row["committed_at"].isoformat(),
        age_seconds=round((now - facts.committed_at).total_seconds(), 1),
        spaces=len(facts.space_tables),
        replicasets={
            uuid: {**facts.positions.get(uuid, {}), "vclock": vclock}
            for uuid, vclock in facts.vclocks.items()
        },
        unread_bytes={},
        gaps=tuple(map(str, facts.open_gaps)),
        requests=facts.open_requests,
        waiting=sum(rows.row_count for rows in facts.pending),
        pending=pending_rows(facts.location, leaders),
        set_aside=sum(rows.row_count for rows in facts.set_aside.values()),
        misfits=sum(rows.row_count for rows in facts.misfits.values()),
        conflicts=facts.conflict_count,
        refused=tuple(f"{one.name} of {', '.join(one.replicasets)}: {one.reason}" for one in facts.refused),
    )


def overview_as_json(overview: Overview) -> dict[str, Any]:
    """Return an overview as a JSON object; its names are those of `aggregator status --json`."""
    problems = [problem_as_json(one) for one in overview.problems]
    costs = {} if overview.costs is None else overview.costs.as_json()
    fields = asdict(overview)
    del fields["costs"]
    return {**fields, **costs, "problems": problems}
