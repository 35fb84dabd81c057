"""Follows several replicasets in one process, and removes files that no reader of their spools needs.

If a replicaset cannot be followed, the error is reported, and the daemon tries again after a wait that grows with each
failure; the other replicasets are not affected. `replicaset_status` and `DaemonMetrics` report the status, as a JSON
document and as Prometheus metrics. Peers are shown by address, so no password appears. The HTTP server is in
`observe.status_page`.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from schemas.conditions import Job
from schemas.errors import AggregatorError
from schemas.problems import Problem, condition_metric, problem_as_json, sorted_problems
from sources.iproto import row_stream
from sources.spool import state as spool_state
from sources.spool.acks import remove_expired_acks
from sources.spool.disk_space import removable_files, remove_files
from sources.spool.options import SpoolRetention
from sources.subscribe.peer_state import Backoff
from sources.subscribe.problems import failure_text, replicaset_problems, retained_rows
from sources.subscribe.replicaset import ReplicasetSubscription

logger = logging.getLogger(__name__)

REMOVAL_SECONDS = 5.0
"""Seconds between two removals of files that no reader needs."""


def daemon_tasks(
    replicasets: Sequence[ReplicasetSubscription], retention: SpoolRetention
) -> list[Coroutine[Any, Any, None]]:
    """Return the coroutines to run: one that follows each replicaset, and one that removes files of all spools."""
    row_stream.compile_kernels()
    return [
        *(_follow_with_restarts(replicaset) for replicaset in replicasets),
        _remove_files_repeatedly(replicasets, retention),
    ]


async def _follow_with_restarts(replicaset: ReplicasetSubscription) -> None:
    timing, loop = replicaset.options.timing, asyncio.get_running_loop()
    backoff = Backoff(timing.min_retry_seconds, timing.max_retry_seconds)
    while True:
        started_at = loop.time()
        try:
            # In a task of its own: a task group that fails while it is cancelled raises the error, and its own task
            # may keep a count of cancellations after an error (Python 3.11). The count of this task is exact.
            await asyncio.create_task(replicaset.run())
        except Exception as error:
            _record_error(replicaset, _root_error(error))
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from error
        if loop.time() - started_at > 2 * timing.max_retry_seconds:
            backoff.reset()
        seconds = backoff.next_wait_seconds()
        logger.info("%s: starts again in %.1f seconds", replicaset.options.name, seconds)
        await asyncio.sleep(seconds)
        replicaset.restarts += 1
        replicaset.restart_times.append(time.time())


def _root_error(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _record_error(replicaset: ReplicasetSubscription, error: Exception) -> None:
    """Log an error of a replicaset and store it in `replicaset.error`; log the traceback of an unexpected error."""
    is_expected = isinstance(error, AggregatorError | OSError)
    printable = str(error) if is_expected else f"{type(error).__name__}: {error}"
    recorded = error if isinstance(error, AggregatorError) else AggregatorError(printable)
    if str(recorded) != str(replicaset.error):
        logger.error("%s: %s", replicaset.options.name, recorded, exc_info=None if is_expected else error)
    replicaset.error = recorded


async def _remove_files_repeatedly(
    replicasets: Sequence[ReplicasetSubscription], retention: SpoolRetention
) -> None:
    while True:
        await asyncio.sleep(REMOVAL_SECONDS)
        for replicaset in replicasets:
            spool_state.renew_lock(replicaset.options.directory)
            try:
                remove_unneeded_files(replicaset, retention)
            except Exception as error:  # any error: files of the other spools are still removed
                logger.error("%s: files are not removed: %s", replicaset.options.name, error)


def remove_unneeded_files(replicaset: ReplicasetSubscription, retention: SpoolRetention) -> None:
    """Remove the files of a replicaset's spool that no reader needs, and log acknowledgements that cannot be read."""
    directory, now = replicaset.options.directory, time.time()
    snapshots, logs = spool_state.spool_files(directory, ".snap"), spool_state.spool_files(directory, ".xlog")
    acks = remove_expired_acks(directory, retention, now)
    bad_acks = {name: ack.error for name, ack in acks.items() if ack.error is not None}
    for name in bad_acks.keys() - replicaset.bad_acks.keys():
        logger.error(
            "%s: reader %s: %s; files are kept as if it had read none",
            replicaset.options.name,
            name,
            bad_acks[name],
        )
    replicaset.bad_acks = bad_acks
    remove_files(removable_files(snapshots, logs, acks, retention, now))


def replicaset_status(replicaset: ReplicasetSubscription) -> dict[str, Any]:
    """Return the status of one replicaset as a JSON object."""
    vclock, progress = replicaset.spool.vclock, replicaset.progress
    files = _file_sizes(replicaset)
    return {
        "name": replicaset.options.name,
        "feed": str(replicaset.options.feed),
        "error": failure_text(replicaset),
        "subscriber": replicaset.spool.instance_uuid,
        "vclock": None if vclock is None else _with_string_keys(vclock),
        "durable": None
        if replicaset.spool.durable_vclock is None
        else _with_string_keys(replicaset.spool.durable_vclock),
        "instances": _with_string_keys(replicaset.chooser.owners),
        "assignment": {
            feed.link.name: "all" if feed.ids is None else sorted(feed.ids)
            for feed in replicaset.feeds.values()
        },
        "lag_rows": _with_string_keys(progress.lag_rows(vclock or {})),
        "lag_seconds": _with_string_keys(progress.lag_seconds(vclock or {})),
        "peers": [
            {
                "address": link.name,
                "instance": link.uuid,
                "connected": link.ballot is not None,
                "connects": link.connection_count,
                "vclock": None if link.ballot is None else _with_string_keys(link.ballot.vclock),
                "kept_from": None
                if link.retained_vclock is None
                else _with_string_keys(link.retained_vclock),
                "kept_rows": retained_rows(link),
                "error": None if link.error is None else str(link.error),
                "left_out": None if link.left_out is None else link.left_out.reason,
                "left_out_since": None if link.left_out is None else link.left_out.since,
            }
            for link in replicaset.links
        ],
        "transactions": progress.written_transactions,
        "rows_repeated": progress.repeated_rows
        + sum(feed.rows.repeated_rows for feed in replicaset.feeds.values()),
        "restarts": replicaset.restarts,
        "streams": progress.started_streams,
        "assignments": progress.assignment_changes,
        "snapshots": progress.fetched_snapshots,
        "spool": {
            "path": str(replicaset.options.directory),
            "bytes": sum(files.values()),
            "files": len(files),
            "full": replicaset.spool.is_full,
            "bad_acknowledgements": dict(sorted(replicaset.bad_acks.items())),
            "held_bytes": sum(feed.queue.size_bytes for feed in replicaset.feeds.values()),
        },
    }


def _with_string_keys(values: Any) -> dict[str, Any]:
    return {str(key): value for key, value in sorted(values.items())}


def _file_sizes(replicaset: ReplicasetSubscription) -> dict[str, int]:
    try:
        files = [
            f for s in (".snap", ".xlog") for f in spool_state.spool_files(replicaset.options.directory, s)
        ]
    except (OSError, AggregatorError):
        return {}
    return {file.path.name: file.size for file in files}


def daemon_problems(replicasets: Sequence[ReplicasetSubscription]) -> list[Problem]:
    """Return what needs attention in some replicasets, in the order of the list of conditions."""
    return sorted_problems(one for replicaset in replicasets for one in replicaset_problems(replicaset))


def daemon_status(replicasets: Sequence[ReplicasetSubscription]) -> dict[str, Any]:
    """Return the content of the daemon's page `/status`."""
    return {
        "problems": [problem_as_json(one) for one in daemon_problems(replicasets)],
        "replicasets": [replicaset_status(replicaset) for replicaset in replicasets],
    }


class DaemonMetrics:
    """Collects the daemon's metrics for `prometheus_client`."""

    def __init__(self, replicasets: Sequence[ReplicasetSubscription]) -> None:
        self._replicasets = replicasets
        self._started = time.time()

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        statuses = [replicaset_status(replicaset) for replicaset in self._replicasets]
        origin = ["replicaset", "replica_id"]
        for name, text in (
            ("lag_rows", "Rows that peers have and the spool has not"),
            ("lag_seconds", "Since when the spool lacks rows, or no peer has said what it has"),
        ):
            gauge = GaugeMetricFamily(f"subscribe_{name}", text, labels=origin)
            for status in statuses:
                for id_, value in status[name].items():
                    gauge.add_metric([status["name"], id_], value)
            yield gauge
        lsn = GaugeMetricFamily("subscribe_lsn", "Last lsn in the spool", labels=origin)
        connected = GaugeMetricFamily(
            "subscribe_connected", "Whether a peer answers", labels=["replicaset", "peer"]
        )
        kept = GaugeMetricFamily(
            "subscribe_kept_rows",
            "Rows that a server keeps in its logs for us",
            labels=["replicaset", "peer"],
        )
        assigned = GaugeMetricFamily(
            "subscribe_assigned", "Whether a peer's stream runs", labels=["replicaset", "peer", "ids"]
        )
        for status in statuses:
            for id_, value in (status["vclock"] or {}).items():
                lsn.add_metric([status["name"], id_], value)
            for peer in status["peers"]:
                connected.add_metric([status["name"], peer["address"]], peer["connected"])
                if peer["kept_rows"] is not None:
                    kept.add_metric([status["name"], peer["address"]], peer["kept_rows"])
            for peer, ids in status["assignment"].items():
                printable = ids if isinstance(ids, str) else ",".join(map(str, ids))
                assigned.add_metric([status["name"], peer, printable], 1)
        yield from (lsn, connected, kept, assigned)
        yield from self._counters_and_spool_gauges(statuses)
        yield condition_metric(Job.DAEMON, daemon_problems(self._replicasets))

    def _counters_and_spool_gauges(self, statuses: list[dict[str, Any]]) -> Iterator[Metric]:
        for name, text in (
            ("transactions", "Transactions written to the spool"),
            ("rows_repeated", "Rows received again that the spool already had"),
            ("restarts", "Restarts after a failure"),
            ("streams", "Successful SUBSCRIBEs"),
            ("assignments", "Changes of the assignment of ids to peers"),
            ("snapshots", "Snapshots fetched"),
        ):
            counter = CounterMetricFamily(
                f"subscribe_{name}", text, labels=["replicaset"], created=self._started
            )
            for status in statuses:
                counter.add_metric([status["name"]], status[name])
            yield counter
        size = GaugeMetricFamily("subscribe_spool_bytes", "Size of the spool", labels=["replicaset"])
        full = GaugeMetricFamily("subscribe_spool_full", "Whether rows wait for room", labels=["replicaset"])
        failed = GaugeMetricFamily(
            "subscribe_failed", "Whether nothing can be received", labels=["replicaset"]
        )
        for status in statuses:
            size.add_metric([status["name"]], status["spool"]["bytes"])
            full.add_metric([status["name"]], status["spool"]["full"])
            failed.add_metric([status["name"]], status["error"] is not None)
        yield from (size, full, failed)
