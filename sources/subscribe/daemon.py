"""Follows several replicasets in one process, and removes files that no reader of their spools needs.

If a replicaset cannot be followed, the error is reported and following starts again after a growing wait; the other
replicasets are not affected.
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
from sources.spool.options import SpoolRetention
from sources.spool.removal import removable_files, remove_files
from sources.subscribe.backoff import Backoff
from sources.subscribe.replicaset import FollowedReplicaset

logger = logging.getLogger(__name__)

REMOVE_SECONDS = 5.0


def daemon_tasks(
    replicasets: Sequence[FollowedReplicaset], keep: SpoolRetention
) -> list[Coroutine[Any, Any, None]]:
    """Return the coroutines to run: one that follows each replicaset, and one that removes files of all spools."""
    inflow.compile_kernels()
    return [
        *(_run_restarting(replicaset) for replicaset in replicasets),
        _remove_files_repeatedly(replicasets, keep),
    ]


async def _run_restarting(replicaset: FollowedReplicaset) -> None:
    """Follow a replicaset until cancelled; start again after any error."""
    timing, loop = replicaset.options.timing, asyncio.get_running_loop()
    backoff = Backoff(timing.reconnect, timing.longest)
    while True:
        started_at = loop.time()
        try:
            await replicaset.run()
        except Exception as error:
            _record_error(replicaset, _root_error(error))
        if loop.time() - started_at > 2 * timing.longest:
            backoff.reset()
        seconds = backoff.seconds()
        logger.info("%s: starts again in %.1f seconds", replicaset.options.name, seconds)
        await asyncio.sleep(seconds)
        replicaset.restarts += 1


def _root_error(error: Exception) -> Exception:
    """Return the first error in nested exception groups: the one that ended a group of tasks."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _record_error(replicaset: FollowedReplicaset, error: Exception) -> None:
    """Log an error of a replicaset and store it for the status; an unexpected error is logged with its traceback."""
    is_expected = isinstance(error, AggregatorError | OSError)
    printable = str(error) if is_expected else f"{type(error).__name__}: {error}"
    recorded = error if isinstance(error, AggregatorError) else AggregatorError(printable)
    if str(recorded) != str(replicaset.error):
        logger.error("%s: %s", replicaset.options.name, recorded, exc_info=None if is_expected else error)
    replicaset.error = recorded


async def _remove_files_repeatedly(replicasets: Sequence[FollowedReplicaset], keep: SpoolRetention) -> None:
    while True:
        await asyncio.sleep(REMOVE_SECONDS)
        for replicaset in replicasets:
            try:
                remove_unneeded_files(replicaset, keep)
            except Exception as error:  # any error: files of the other spools are still removed
                logger.error("%s: files are not removed: %s", replicaset.options.name, error)


def remove_unneeded_files(replicaset: FollowedReplicaset, keep: SpoolRetention) -> None:
    """Remove the files of a spool that no reader needs, and report acknowledgements that cannot be read."""
    directory, now = replicaset.options.directory, time.time()
    snapshots, logs = spool_state.spool_files(directory, ".snap"), spool_state.spool_files(directory, ".xlog")
    acks = remove_expired(directory, keep, now)
    bad_acks = {name: ack.error for name, ack in acks.items() if ack.error is not None}
    for name in bad_acks.keys() - replicaset.bad_acks.keys():
        logger.error(
            "%s: reader %s: %s; files are kept as if it had read none",
            replicaset.options.name,
            name,
            bad_acks[name],
        )
    replicaset.bad_acks = bad_acks
    remove_files(removable_files(snapshots, logs, acks, keep, now))
