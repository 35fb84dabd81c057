"""Several replicasets followed by one process, until it is told to stop; and their spools kept small.

A replicaset that cannot be followed is reported and does not hold up the others. Not here: the configuration, the
status page, signals (`jobs.subscribe`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from schemas.errors import AggregatorError
from sources.iproto import inflow
from sources.spool import state as spool_state
from sources.spool.acks import read_acks
from sources.spool.removal import Keep, removable, remove
from sources.subscribe.replicaset import Replicaset

logger = logging.getLogger(__name__)

REMOVE_SECONDS = 5.0


async def follow(replicasets: Sequence[Replicaset], keep: Keep, stop: asyncio.Event) -> None:
    """Follow until `stop` is set.

    Raises
    ------
    AggregatorError
        A spool cannot be used: another process writes it, or it is damaged.

    """
    inflow.warm()
    tasks = [asyncio.create_task(replicaset.run()) for replicaset in replicasets]
    tasks += [asyncio.create_task(_tidy(replicasets, keep)), asyncio.create_task(_until(stop))]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        error = task.exception()
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0]
        if error is not None:
            raise error


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


async def _tidy(replicasets: Sequence[Replicaset], keep: Keep) -> None:
    while True:
        await asyncio.sleep(REMOVE_SECONDS)
        for replicaset in replicasets:
            try:
                tidy(replicaset, keep)
            except (AggregatorError, OSError) as error:
                logger.error("%s: files are not removed: %s", replicaset.options.name, error)


def tidy(replicaset: Replicaset, keep: Keep) -> None:
    """Remove what every reader of a spool has passed."""
    directory = replicaset.options.directory
    snapshots, logs = spool_state.files_of(directory, ".snap"), spool_state.files_of(directory, ".xlog")
    remove(removable(snapshots, logs, read_acks(directory), keep, time.time()))
