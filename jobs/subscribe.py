"""Follow live Tarantool masters as an anonymous replica, into spools that the main job reads.

If a spool is empty or lost, the daemon gets the rows that follow those in the tables. `_vclock` has global ids, and the
vclock that is sent to a master has the replica ids of its replicaset: they are found by the inverse of the applier map
(`warehouse.system_tables.applier_map`). Rows that wait in `_pending` are not settled (they were not applied), so they
are read again. The work is in `sources.subscribe`.
"""

import asyncio
import logging
import sys
from pathlib import Path

from config.deployment import DaemonConfig
from config.subscribe import Subscribe
from config.values import listen_address
from jobs.main import main
from jobs.runtime.command_line import Stopped, log_to_stderr, make_new_files_private, wait_until_stopped
from observe.instance_ids import InstanceIdReader, vclock_in_source
from observe.status_page import status_page
from schemas.errors import ConfigurationError
from sources.spool.options import SpoolRetention
from sources.spool.state import read_state
from sources.subscribe.daemon import DaemonMetrics, daemon_status, daemon_tasks
from sources.subscribe.options import SpoolStart
from sources.subscribe.replicaset import ReplicasetSubscription
from warehouse.delta.location import location_of
from warehouse.delta.newest_epoch import EPOCHS

log = logging.getLogger(__name__)


def is_empty_spool(spool: Path) -> bool:
    """Whether a spool has no file yet; raise SpoolError if it is damaged."""
    return not spool.is_dir() or read_state(spool).vclock is None


def spool_start_of(ids: InstanceIdReader, source: str) -> SpoolStart | None:
    """Return where an empty spool begins: after the rows of its replicaset in the tables; None without any."""
    uuid = ids.replicaset_of_read_source(source)
    return None if uuid is None else SpoolStart(uuid, vclock_in_source(ids, uuid, source))


def spool_starts(section: Subscribe) -> list[SpoolStart | None]:
    """Return where the spool of each configured replicaset begins, in the same order.

    None if a spool is not empty, so that it continues, or if it begins with a snapshot.

    Raises:
        WarehouseError: The tables cannot be read; beginning with a snapshot instead would silently leave a gap.
    """
    if section.warehouse is None:
        return [None] * len(section.replicasets)
    location = location_of(section.warehouse, section.database)
    tables = InstanceIdReader(location) if location.has(EPOCHS) else None
    found = []
    for replicaset in section.replicasets:
        empty = tables is not None and is_empty_spool(Path(replicaset.spool))
        start = (
            spool_start_of(tables, replicaset.source or replicaset.name)
            if tables is not None and empty
            else None
        )
        if start is not None:
            log.info(
                "%s: the spool is empty: it begins at %s, as the tables say", replicaset.name, start.vclock
            )
        found.append(start)
    return found


def subscribe(config: DaemonConfig, file: str, *, accept_rewind: bool = False, verbose: bool = False) -> None:
    """Run the daemon until it is stopped."""
    section = config.subscribe
    if section is None:
        raise ConfigurationError("the file has no section subscribe", file=file)
    make_new_files_private()
    log_to_stderr(verbose=verbose)
    options = section.replicaset_options(accept_rewind=accept_rewind, max_block_bytes=config.max_block_bytes)
    replicasets = [ReplicasetSubscription(*each) for each in zip(options, spool_starts(section), strict=True)]
    for replicaset in replicasets:
        for link in replicaset.links:
            link.peer.password.read()  # a missing secret is reported at the start, not at the first reconnect

    def status() -> object:
        return daemon_status(replicasets)

    with status_page(listen_address(section.status), DaemonMetrics(replicasets), status):
        asyncio.run(_run_until_stopped(replicasets, section.keep.spool_retention()))
    raise Stopped


async def _run_until_stopped(replicasets: list[ReplicasetSubscription], retention: SpoolRetention) -> None:
    await wait_until_stopped([asyncio.create_task(each) for each in daemon_tasks(replicasets, retention)])


if __name__ == "__main__":
    sys.exit(main("subscribe"))
