"""Common parts of the daemons: private files, messages on stderr, and running until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence


def keep_private() -> None:
    """Make new files and folders readable by this user only: they contain whole rows."""
    os.umask(0o077)


def log_to_stderr(*, verbose: bool) -> None:
    """Log messages with the time."""
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


async def stopped(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until a signal comes or a task ends; end the others cleanly, and raise the error of a task."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    waiting = asyncio.create_task(stop.wait())
    done, rest = await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        error = task.exception()
        if error is not None:
            raise error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
