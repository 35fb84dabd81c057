"""Finds everything that needs attention in a deployment: in its tables, logs, disks, spools, and running jobs.

`aggregator status`, `aggregator doctor` and the page of `aggregator report` show what this module finds.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from config.deployment import Config
from config.relay import RelayConfig
from config.subscribe import Subscribe, seconds
from config.values import listen_address
from observe.asked import asked_status, problems_in
from observe.doctor.findings import Level
from observe.doctor.machine import check_disks, disks_of
from observe.facts import DeploymentFacts
from observe.log_ends import LogEnds
from observe.problems import (
    difference_problem,
    log_problems,
    proof_problems,
    spool_problems,
    standby_problems,
    table_problems,
)
from observe.standbys import StandbyOverview, standbys_overview
from observe.write_costs import debt_problems, read_write_costs
from schemas.problems import Problem, problem, sorted_problems
from sources.spool.state import StoppedSpool, stopped_spools
from warehouse.delta.location import location_of
from warehouse.lock.lock import LOCK_NAME, holder_now, local_folder


class DeploymentState:
    """What is known of a deployment at one moment; problems of it are found once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.now = datetime.now(UTC)
        self.facts = DeploymentFacts(location_of(config.warehouse, config.database))
        self.unread_bytes: Mapping[str, int] = LogEnds(config.sources).unread_bytes(self.facts.positions)
        self.spool_names = spool_names(config)
        self.stopped_spools: tuple[StoppedSpool, ...] = tuple(stopped_spools(map(Path, self.spool_names)))
        self.costs = read_write_costs(config, self.facts.location)
        self.standbys: tuple[StandbyOverview, ...] = standbys_overview(config)

    def problems(self) -> list[Problem]:
        """Return what needs attention, in the order of the list of conditions."""
        return sorted_problems(
            [
                *self._stream_problems(),
                *map(difference_problem, self.facts.table_differences),
                *table_problems(self.facts),
                *debt_problems(self.costs.debts),
                *log_problems(self.facts, self.unread_bytes, self.now),
                *self._proof_problems(),
                *standby_problems(self.standbys),
                *disk_problems(self.config, self.config.subscribe),
                *daemon_problems(self.config.subscribe, self.stopped_spools),
                *spool_problems(self.stopped_spools, self.spool_names),
                *relay_problems(self.config.relay),
            ]
        )

    def _proof_problems(self) -> Iterator[Problem]:
        if self.config.prove is not None:
            yield from proof_problems(self.facts, seconds(self.config.prove.every), self.now)

    def _stream_problems(self) -> Iterator[Problem]:
        metrics = self.config.metrics
        address = None if metrics is None else listen_address(metrics.status)
        if address is None:
            return
        status = asked_status(address)
        if status is not None:
            yield from problems_in(status)
            return
        folder = local_folder(self.facts.location.root)
        holder = None if folder is None else holder_now(folder / LOCK_NAME)
        if holder is not None:
            yield problem("down", "stream", f"nothing answers at {address}; the lock is held by {holder}")
        elif any(self.unread_bytes.values()):
            since = self.facts.committed_at.timestamp()
            yield problem("down", "stream", "no job runs, and logs have unread rows", since=since)


def spool_names(config: Config) -> Mapping[str, str]:
    """Return, by folder, the names of all that may be spools: the sources' folders, and those of `subscribe`."""
    of_sources = {
        str(folder): source.name
        for source in config.sources
        if (folder := local_folder(source.path)) is not None
    }
    replicasets = () if config.subscribe is None else config.subscribe.replicasets
    return {str(Path(one.spool)): one.source or one.name for one in replicasets} | of_sources


def daemon_problems(section: Subscribe | None, stopped: Sequence[StoppedSpool]) -> Iterator[Problem]:
    """Yield what the daemon says of itself, or that it says nothing although it has locked a spool.

    Args:
        stopped: The spools that `spool_problems` names. Both get the same list: the spool of a daemon that begins to
            hang joins it between two looks.
    """
    address = None if section is None else listen_address(section.status)
    if section is None or address is None:
        return
    status = asked_status(address)
    if status is not None:
        yield from problems_in(status)
        return
    stopped_folders = {spool.directory for spool in stopped}
    for replicaset in section.replicasets:
        if str(Path(replicaset.spool)) not in stopped_folders:
            subject = f"spool {replicaset.source or replicaset.name}"
            yield problem("subscribe_down", subject, f"nothing answers at {address}")


def relay_problems(section: RelayConfig | None) -> Sequence[Problem]:
    """Return what the relay says of itself; none if it does not answer, since it need not run."""
    address = None if section is None else listen_address(section.status)
    status = None if address is None else asked_status(address)
    return () if status is None else problems_in(status)


def disk_problems(config: Config | None, subscribe: Subscribe | None) -> Iterator[Problem]:
    """Yield the disks without room for what is written at once, by the rule of `doctor`."""
    for finding in check_disks(list(disks_of(config, subscribe))):
        if finding.level is Level.FAIL:
            yield problem("disk_full", finding.subject, finding.text)


def deployment_problems(config: Config) -> list[Problem]:
    """Return what needs attention in a deployment; WarehouseError if no batch has been committed yet."""
    return DeploymentState(config).problems()
