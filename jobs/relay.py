"""Serve spools over IPROTO, to other subscription daemons and to anonymous replicas of Tarantool.

With `--aggregated` it serves the rows of the warehouse's tables as one replicaset, instead of the rows of spools. The
work is in `sources.relay` and `pipeline.replication_out`.
"""

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.registry import Collector

from config.deployment import DaemonConfig
from config.relay import RelayConfig
from config.subscribe import seconds
from config.values import listen_address
from jobs.main import main
from jobs.runtime.command_line import Stopped, log_to_stderr, make_new_files_private, wait_until_stopped
from observe.status_page import status_page
from pipeline.replication_out.service import (
    ReplicationMetrics,
    ReplicationOptions,
    ReplicationService,
    service_problems,
)
from pipeline.replication_out.service import service_status as replication_status
from pipeline.replication_out.users import SubscriberUser
from schemas.errors import ConfigurationError
from schemas.problems import problem_as_json, sorted_problems
from sources.relay.server import Relay, RelayMetrics, relay_problems, relay_status


def relay(config: DaemonConfig, file: str, *, aggregated: bool = False, verbose: bool = False) -> None:
    """Run the relay until it is stopped."""
    section = config.relay
    if section is None:
        raise ConfigurationError("the file has no section relay", file=file)
    make_new_files_private()
    log_to_stderr(verbose=verbose)
    options_of = section.aggregated_options if aggregated else section.spool_options
    served = options_of(config.max_block_bytes)
    if not served:
        missing = "aggregated" if aggregated else "spools"
        raise ConfigurationError(f"the section relay has no {missing}", file=file)
    services = (
        [ReplicationService(_replication_options(section, config.max_block_bytes))] if aggregated else []
    )
    relays = [Relay(each, services[0].durable_end if services else None) for each in served]
    for service in services:
        service.options.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    for each in relays:
        for password in each.options.users.values():
            password.read()  # a missing secret is reported at the start

    def status() -> object:
        problems = [one for each in relays for one in relay_problems(each)]
        problems += [one for service in services for one in service_problems(service)]
        found: dict[str, object] = {
            "problems": [problem_as_json(one) for one in sorted_problems(problems)],
            "spools": [relay_status(each) for each in relays],
        }
        if services:
            found["aggregated"] = replication_status(services[0])
        return found

    with status_page(
        listen_address(section.status),
        _JoinedMetrics([RelayMetrics(relays), *map(ReplicationMetrics, services)]),
        status,
    ):
        asyncio.run(_run_until_stopped(relays, services))
    raise Stopped


class _JoinedMetrics:
    """A collector that yields the metrics of several collectors."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        for one in self._collectors:
            yield from one.collect()


def _replication_options(section: RelayConfig, max_block_bytes: int) -> ReplicationOptions:
    own = section.aggregated
    if own is None:
        raise ConfigurationError("the section relay has no aggregated")
    readers = tuple(SubscriberUser(each.name, each.password(), each.executes) for each in own.readers)
    for reader in readers:
        if reader.password is not None:
            reader.password.read()
    return ReplicationOptions(
        *(own.warehouse, own.database, Path(own.spool), readers),
        poll_seconds=seconds(own.poll),
        forget_seconds=seconds(own.forget),
        max_block_bytes=max_block_bytes,
    )


async def _run_until_stopped(relays: Sequence[Relay], services: Sequence[ReplicationService]) -> None:
    logging.getLogger(__name__).info(
        "serving %s", ", ".join(str(each.options.listen_address) for each in relays)
    )
    running = [*(each.run() for each in relays), *(each.run() for each in services)]
    await wait_until_stopped([asyncio.create_task(each) for each in running])


if __name__ == "__main__":
    sys.exit(main("relay"))
