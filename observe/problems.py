"""Finds the conditions of `schemas.conditions` that are true in a deployment's tables and logs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from observe.facts import DeploymentFacts
from observe.standbys import StandbyOverview
from schemas.conditions import INSTANT_WAIT_SECONDS, LAG_SECONDS, NO_COMMIT_SECONDS
from schemas.problems import Problem, problem
from schemas.states import SET_ASIDE_PREFIX, GapKind
from sources.spool.state import StoppedSpool
from sources.xlog.directory.offset import InstantState
from warehouse.system_tables.table_differences import TableDifference, TableState


def table_problems(facts: DeploymentFacts) -> Iterator[Problem]:
    """Yield what needs attention in the rows of the tables."""
    for gap in facts.open_gaps:
        where = f"{facts.labels.get(gap.replicaset_id, gap.replicaset_id)}, replica id {gap.local_id}"
        lsns = f"lsns {gap.first_lsn} to {gap.last_lsn}"
        if gap.kind == GapKind.DIVERGENCE:
            yield problem("divergence", f"replicaset {where}", f"two logs have different rows under {lsns}")
        else:
            text = f"{lsns} are missing in source {gap.source} (before {gap.file}); rows behind them wait"
            yield problem("gap_open", f"replicaset {where}", text)
    yield from _pending_problems(facts)
    for refused in facts.refused:
        text = f"it goes to no table in {', '.join(refused.replicasets)}: {refused.reason}"
        is_set_aside = refused.reason.startswith(SET_ASIDE_PREFIX)
        advice = f"`aggregator rebuild {refused.name}` (docs/foreign-changes.md)" if is_set_aside else ""
        yield problem("spaces_refused", f"space {refused.name}", text, advice=advice)
    for space, rows in facts.set_aside.items():
        count = "1 key or row is" if rows.row_count == 1 else f"{rows.row_count} keys or rows are"
        text = f"{count} in no table, such as: {first_reason(rows.reason)}"
        yield problem("rows_set_aside", f"space {space}", text)
    for space, rows in facts.misfits.items():
        count = "1 row has" if rows.row_count == 1 else f"{rows.row_count} rows have"
        text = f"{count} a NULL for a value that its column cannot hold: {first_reason(rows.reason)}"
        yield problem("misfits", f"table {space}", text)


def difference_problem(difference: TableDifference) -> Problem:
    """Return the problem that a table is not as the newest epoch names it."""
    subject, text, advice = f"table {difference.table}", difference.text, difference.advice
    if difference.state in (TableState.LOST, TableState.OLDER):
        return problem("table_lost", subject, text, advice=advice)
    return problem("table_changed", subject, text, advice=advice)


def first_reason(text: str) -> str:
    """Return the last line of a traceback; of several columns' reasons, the first and the number of others."""
    first, *others = re.split(r"; (?=fields? )", text.strip().rpartition("\n")[2])
    count = "1 more column" if len(others) == 1 else f"{len(others)} more columns"
    return f"{first}; {count}" if others else first


def _pending_problems(facts: DeploymentFacts) -> Iterator[Problem]:
    by_replicaset: dict[int, list[str]] = {}
    for rows in facts.pending:
        count = "1 row waits" if rows.row_count == 1 else f"{rows.row_count} rows wait"
        moment = (
            ""
            if rows.oldest is None
            else f" since {rows.oldest.astimezone(UTC).isoformat(timespec='seconds')}"
        )
        by_replicaset.setdefault(rows.replicaset_id, []).append(f"{count}{moment}: {rows.reason}")
    for number, texts in by_replicaset.items():
        more = f"; {len(texts) - 1} more reasons" if len(texts) > 1 else ""
        yield problem("rows_waiting", f"replicaset {facts.labels.get(number, number)}", texts[0] + more)


def proof_problems(facts: DeploymentFacts, every_seconds: float, now: datetime) -> Iterator[Problem]:
    """Yield the tables that differ from their servers, and the proof if it is older than it may be."""
    for one in facts.server_proofs:
        if one.difference_count:
            text = f"{one.difference_count} keys differ from those of the servers of {facts.label(one.replicaset_uuid)}"
            yield problem("proof_differs", f"table {one.table}", text)
    since = facts.unproven_since.timestamp()
    age = now.timestamp() - since
    if age > every_seconds:
        errors = sorted(
            {f"{one.table}: {first_reason(one.error)}" for one in facts.server_proofs if one.error}
        )
        text = f"not every tuple was compared and equal within the last {every_seconds / 3600:.3g} h"
        text += f"; not compared: {'; '.join(errors[:3])}" if errors else ""
        yield problem("proof_stale", "proof", text, since=since)


def log_problems(facts: DeploymentFacts, unread_bytes: Mapping[str, int], now: datetime) -> Iterator[Problem]:
    """Yield what needs attention about unread rows of logs; `unread_bytes` is by source, beyond the newest epoch."""
    unread = {source: count for source, count in unread_bytes.items() if count}
    committed = facts.committed_at.timestamp()
    age = now.timestamp() - committed
    if unread and age > NO_COMMIT_SECONDS:
        yield no_commit_problem(unread, age, committed)
    for position in facts.positions.values():
        instant = position.get("instant")
        if instant and instant["state"] == InstantState.WAITING:
            waited = now.timestamp() - instant["time"] / 1_000_000
            if waited > INSTANT_WAIT_SECONDS:
                yield instant_problem(str(position["leader"]), waited)


def no_commit_problem(unread: Mapping[str, int], age: float, committed: float) -> Problem:
    """Return the problem that nothing is committed although logs have unread bytes, by source."""
    text = (
        f"no epoch for {age:.0f} s, and unread bytes in {', '.join(f'{s} ({n})' for s, n in unread.items())}"
    )
    return problem("no_commit", "stream", text, since=committed)


def lag_problem(source: str, lag_seconds: float, unread: int) -> Problem | None:
    """Return the problem that rows of a source are committed late; None if they are not."""
    if lag_seconds <= LAG_SECONDS or not unread:
        return None
    text = f"its newest committed row is {lag_seconds:.0f} s old, and {unread} bytes of its log are unread"
    return problem("lag_high", f"source {source}", text)


def instant_problem(source: str, waited: float) -> Problem:
    """Return the problem that a source waits at an instant."""
    text = f"it has waited for {waited:.0f} s at an instant that another replicaset has not reached"
    return problem("instant_waits", f"source {source}", text)


def standby_problems(standbys: Sequence[StandbyOverview]) -> Iterator[Problem]:
    """Yield the standby copies that lack epochs."""
    for standby in standbys:
        if not standby.is_up_to_date:
            yield problem("peer_lost", f"standby {standby.root}", standby.state)


def spool_problems(spools: Sequence[StoppedSpool], names: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the spools that no daemon writes; `names` has the names of their replicasets or sources by folder."""
    for spool in spools:
        subject = f"spool {names.get(spool.directory, spool.directory)}"
        text = f"no daemon writes {spool.directory}"
        if spool.is_hung:
            text = f"the daemon has locked {spool.directory}, and shows no sign of life"
        yield problem("subscribe_down", subject, text, since=spool.written, advice=_spool_advice(spool))


def _spool_advice(spool: StoppedSpool) -> str:
    start = "start aggregator subscribe"
    if not spool.keeps_logs:
        return start
    let_go = f"box.ctl.replica_gc('{spool.instance_uuid}')"
    return f"{start}, or let each master remove the logs that it keeps for it: {let_go}"
