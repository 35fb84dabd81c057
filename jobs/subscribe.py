"""Follow live Tarantool masters as an anonymous replica, into spools that the main job reads.

    python -m jobs.subscribe --config FILE [--accept-rewind]

Thin: reads the configuration's section `subscribe`, serves the status page, runs until SIGTERM. What it does is in
`sources.subscribe`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from config.address import port_of
from config.deployment import load_live
from config.live import Live
from jobs.cli import Stopped, parser, run
from jobs.daemon import log_to_stderr, stopped
from jobs.spool_start import starts
from jobs.status import status_page
from schemas.errors import ConfigurationError
from sources.spool.keep import Keep
from sources.subscribe.daemon import follow
from sources.subscribe.replicaset import Replicaset
from sources.subscribe.status import Metrics, status_of


def subscribe(config: Live, options: argparse.Namespace) -> None:
    """Run the daemon until it is stopped."""
    section = config.subscribe
    if section is None:
        raise ConfigurationError("the file has no section subscribe", file=options.config)
    log_to_stderr(verbose=options.verbose)
    followed = section.options(accept_rewind=options.accept_rewind, max_block_bytes=config.max_block_bytes)
    replicasets = [Replicaset(*each) for each in zip(followed, starts(section), strict=True)]
    for replicaset in replicasets:
        for link in replicaset.links:
            link.peer.password.read()  # a secret that is missing is a mistake of now, not of the first reconnect

    def status() -> object:
        return {"replicasets": [status_of(replicaset) for replicaset in replicasets]}

    with status_page(port_of(section.status), Metrics(replicasets), status):
        asyncio.run(_until_stopped(replicasets, section.keep.keep()))
    raise Stopped


async def _until_stopped(replicasets: list[Replicaset], keep: Keep) -> None:
    await stopped([asyncio.create_task(each) for each in follow(replicasets, keep)])


def main() -> int:
    """Run the command."""
    arguments = parser((__doc__ or "").partition("\n")[0])
    arguments.add_argument(
        "--accept-rewind",
        action="store_true",
        help="begin a new spool where a server was restored from an older state; the old one is set aside",
    )
    return run(subscribe, arguments, load=load_live)


if __name__ == "__main__":
    sys.exit(main())
