"""Follow live Tarantool masters as an anonymous replica, into spools that the main job reads.

    python -m jobs.subscribe --config FILE [--accept-rewind]

Reads the configuration's section `subscribe`, serves the status page, runs until SIGTERM. The work is in
`sources.subscribe`.
"""

from __future__ import annotations

import asyncio
import sys

from config.address import port_of
from config.live import Live
from jobs.commands.main import main
from jobs.runtime.command_line import Stopped
from jobs.runtime.daemon import keep_private, log_to_stderr, stopped
from jobs.runtime.spool_start import starts
from observe.status_page import status_page
from schemas.errors import ConfigurationError
from sources.spool.keep import Keep
from sources.subscribe.daemon import follow
from sources.subscribe.replicaset import FollowedReplicaset
from sources.subscribe.status import DaemonMetrics, status_of


def subscribe(config: Live, file: str, *, accept_rewind: bool = False, verbose: bool = False) -> None:
    """Run the daemon until it is stopped."""
    section = config.subscribe
    if section is None:
        raise ConfigurationError("the file has no section subscribe", file=file)
    keep_private()
    log_to_stderr(verbose=verbose)
    followed = section.options(accept_rewind=accept_rewind, max_block_bytes=config.max_block_bytes)
    replicasets = [FollowedReplicaset(*each) for each in zip(followed, starts(section), strict=True)]
    for replicaset in replicasets:
        for link in replicaset.links:
            link.peer.password.read()  # a missing secret is reported at the start, not at the first reconnect

    def status() -> object:
        return {"replicasets": [status_of(replicaset) for replicaset in replicasets]}

    with status_page(port_of(section.status), DaemonMetrics(replicasets), status):
        asyncio.run(_until_stopped(replicasets, section.keep.keep()))
    raise Stopped


async def _until_stopped(replicasets: list[FollowedReplicaset], keep: Keep) -> None:
    await stopped([asyncio.create_task(each) for each in follow(replicasets, keep)])


if __name__ == "__main__":
    sys.exit(main("subscribe"))
