"""Finds the conditions of the daemon (`schemas.conditions`) that are true now, of one replicaset."""

import time
from collections.abc import Iterator

from schemas.conditions import DAEMON_LAG_SECONDS, KEPT_ROWS, RESTART_SECONDS, RESTARTS
from schemas.problems import Problem, problem
from sources.subscribe.peer_state import PeerLink, left_out_text
from sources.subscribe.replicaset import ReplicasetSubscription


def failure_text(replicaset: ReplicasetSubscription) -> str | None:
    """Return why nothing of a replicaset is received; None if rows are received, or a snapshot is."""
    if replicaset.error is not None:
        return str(replicaset.error)
    since = replicaset.unfed_since
    is_unfed = since is not None and time.time() - since > replicaset.options.timing.answer_seconds
    if is_unfed and not replicaset.feeds and not replicaset.is_fetching:
        return f"no peer feeds it: {left_out_text(replicaset.links)}"
    return None


def retained_rows(link: PeerLink) -> int | None:
    """Return how many rows a server retains in its logs for this daemon; None if it retains none or did not say."""
    if link.retained_vclock is None or link.ballot is None:
        return None
    return sum(max(0, lsn - link.retained_vclock.get(i, 0)) for i, lsn in link.ballot.vclock.items())


def replicaset_problems(replicaset: ReplicasetSubscription) -> Iterator[Problem]:
    """Yield what needs attention in a replicaset."""
    subject, now = f"replicaset {replicaset.options.name}", time.time()
    failure = failure_text(replicaset)
    if failure is not None:
        yield problem("subscribe_failed", subject, failure, since=replicaset.unfed_since)
    for link in replicaset.links:
        yield from _peer_problems(link, subject)
    if replicaset.spool.is_full:
        text = f"there is no room in {replicaset.options.directory}"
        yield problem("subscribe_spool_full", subject, text)
    vclock = replicaset.spool.vclock or {}
    rows, lags = replicaset.progress.lag_rows(vclock), replicaset.progress.lag_seconds(vclock)
    late = {id_: lag for id_, lag in lags.items() if lag > DAEMON_LAG_SECONDS}
    if late:
        worst = max(late, key=lambda id_: late[id_])
        text = f"the spool is {late[worst]:.0f} s behind replica id {worst}, {sum(rows.values())} rows behind in all"
        yield problem("subscribe_lag_high", subject, text)
    recent = [at for at in replicaset.restart_times if now - at < RESTART_SECONDS]
    if len(recent) > RESTARTS:
        yield problem(
            "subscribe_restarts", subject, f"it began again more than {RESTARTS} times in 15 minutes"
        )


def _peer_problems(link: PeerLink, replicaset: str) -> Iterator[Problem]:
    subject, left_out = f"peer {link.name}", link.left_out
    # A reason of the last answer, such as a replica that is late, may be over at the next one.
    patience = link.timing.patience_seconds if link.ballot is not None else link.timing.answer_seconds
    if left_out is not None and time.time() - left_out.since > patience:
        text = f"no rows of {replicaset} are taken from it: {left_out.reason}"
        yield problem("subscribe_peer_gone", subject, text, since=left_out.since)
    kept = retained_rows(link)
    if kept is not None and kept > KEPT_ROWS:
        yield problem("subscribe_logs_kept", subject, f"it keeps {kept} rows in its logs for {replicaset}")
