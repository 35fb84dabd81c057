"""Several replicasets followed by one process, and their spools kept small.

A replicaset that cannot be followed is reported and does not hold up the others. Not here: the configuration, the
status page, signals (`jobs.subscribe`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from schemas.errors import AggregatorError
from sources.iproto import inflow
from sources.spool import state as spool_state
from sources.spool.acks import read_acks
from sources.spool.keep import Keep
from sources.spool.removal import removable, remove
from sources.subscribe.replicaset import Replicaset

logger = logging.getLogger(__name__)

REMOVE_SECONDS = 5.0


def follow(replicasets: Sequence[Replicaset], keep: Keep) -> list[Coroutine[Any, Any, None]]:
    """Return what is to run: one task a replicaset, and one that removes files."""
    inflow.warm()
    return [*(replicaset.run() for replicaset in replicasets), _tidy(replicasets, keep)]


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
