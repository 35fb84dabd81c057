"""Serve spools over IPROTO, to other subscription daemons and to anonymous replicas of Tarantool.

    python -m jobs.relay --config FILE

Thin: reads the configuration's section `relay`, serves the status page, runs until SIGTERM. What it does is in
`sources.relay`.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from config.address import port_of
from config.live import Live
from jobs.cli import Stopped
from jobs.commands.main import main
from jobs.daemon import keep_private, log_to_stderr, stopped
from jobs.status import status_page
from schemas.errors import ConfigurationError
from sources.relay.server import Relay
from sources.relay.status import Metrics, status_of


def relay(config: Live, file: str, *, verbose: bool = False) -> None:
    """Run the relay until it is stopped."""
    section = config.relay
    if section is None:
        raise ConfigurationError("the file has no section relay", file=file)
    keep_private()
    log_to_stderr(verbose=verbose)
    relays = [Relay(each) for each in section.options(config.max_block_bytes)]
    for each in section.options():
        for password in each.users.values():
            password.read()  # a secret that is missing is a mistake of now

    def status() -> object:
        return {"spools": [status_of(each) for each in relays]}

    with status_page(port_of(section.status), Metrics(relays), status):
        asyncio.run(_until_stopped(relays))
    raise Stopped


async def _until_stopped(relays: list[Relay]) -> None:
    logging.getLogger(__name__).info("serving %s", ", ".join(str(each.options.listen) for each in relays))
    await stopped([asyncio.create_task(each.run()) for each in relays])


if __name__ == "__main__":
    sys.exit(main("relay"))
