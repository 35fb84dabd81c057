"""Several replicasets followed by one process, and their spools kept small.

A replicaset that cannot be followed is reported, does not hold up the others, and is tried again, later each time.
Not here: the configuration, the status page, signals (`jobs.subscribe`).
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
from sources.spool.acks import remove_expired
from sources.spool.keep import Keep
from sources.spool.removal import removable, remove
from sources.subscribe.backoff import Backoff
from sources.subscribe.replicaset import FollowedReplicaset

logger = logging.getLogger(__name__)

REMOVE_SECONDS = 5.0


def follow(replicasets: Sequence[FollowedReplicaset], keep: Keep) -> list[Coroutine[Any, Any, None]]:
    """Return what is to run: one task a replicaset, and one that removes files."""
    inflow.warm()
    return [*(_kept_running(replicaset) for replicaset in replicasets), _tidy(replicasets, keep)]


async def _kept_running(replicaset: FollowedReplicaset) -> None:
    """Follow a replicaset, and again after whatever ended that, until cancelled."""
    timing, loop = replicaset.options.timing, asyncio.get_running_loop()
    backoff = Backoff(timing.reconnect, timing.longest)
    while True:
        began = loop.time()
        try:
            await replicaset.run()
        except Exception as error:
            _report(replicaset, _first(error))
        if loop.time() - began > 2 * timing.longest:
            backoff.reset()
        seconds = backoff.seconds()
        logger.info("%s: begins again in %.1f seconds", replicaset.options.name, seconds)
        await asyncio.sleep(seconds)
        replicaset.restarts += 1


def _first(error: Exception) -> Exception:
    """Return what made a group of tasks end."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _report(replicaset: FollowedReplicaset, error: Exception) -> None:
    """Log an error of a replicaset and keep it for the status, an unforeseen one with its place in the code."""
    is_foreseen = isinstance(error, AggregatorError | OSError)
    shown = str(error) if is_foreseen else f"{type(error).__name__}: {error}"
    found = error if isinstance(error, AggregatorError) else AggregatorError(shown)
    if str(found) != str(replicaset.error):
        logger.error("%s: %s", replicaset.options.name, found, exc_info=None if is_foreseen else error)
    replicaset.error = found


async def _tidy(replicasets: Sequence[FollowedReplicaset], keep: Keep) -> None:
    while True:
        await asyncio.sleep(REMOVE_SECONDS)
        for replicaset in replicasets:
            try:
                tidy(replicaset, keep)
            except Exception as error:  # whatever it is, files of the others are removed
                logger.error("%s: files are not removed: %s", replicaset.options.name, error)


def tidy(replicaset: FollowedReplicaset, keep: Keep) -> None:
    """Remove what every reader of a spool has passed."""
    directory, now = replicaset.options.directory, time.time()
    snapshots, logs = spool_state.files_of(directory, ".snap"), spool_state.files_of(directory, ".xlog")
    acks = remove_expired(directory, keep, now)
    bad = {name: ack.error for name, ack in acks.items() if ack.error is not None}
    for name in bad.keys() - replicaset.bad_acks.keys():
        logger.error(
            "%s: reader %s: %s; files wait for it as if it had passed none",
            replicaset.options.name,
            name,
            bad[name],
        )
    replicaset.bad_acks = bad
    remove(removable(snapshots, logs, acks, keep, now))
