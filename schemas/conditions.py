"""The conditions that need attention: the one list that commands, status pages, metrics, alerts and pages are made of.

Each condition has a name, a severity, how it is found and what to do. The code that finds one makes a `Problem` of it
(`schemas.problems`), so a name that is not in the list cannot be shown. `observe.alert_rules` writes Prometheus' alerts
and `make reference` a page from the list; `observe.problems` finds the conditions of a warehouse,
`sources.subscribe.problems` those of the daemon. Plain data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How soon somebody must look. Both make `aggregator status` end with 1."""

    PAGE = "page"
    """Data is late or incomplete now, and this does not mend itself."""
    TICKET = "ticket"
    """To be looked at in working hours."""


class Job(StrEnum):
    """The process whose condition it is, as Prometheus' `job` and as the prefix of its metrics."""

    STREAM = "aggregator"
    DAEMON = "subscribe"
    RELAY = "relay"
    NODE = "node"


@dataclass(frozen=True)
class Condition:
    """One kind of problem."""

    name: str
    """Stable; other jobs' than the stream's begin with the name of the job."""
    job: Job
    severity: Severity
    means: str
    found: str
    advice: str
    """What to do; markdown, since the documents have it too."""
    summary: str
    """Prometheus' summary of the alert, a template."""
    expr: str = ""
    """The alert's expression; empty: the metric `<job>_condition` says that it is so now."""
    wait: str = ""
    """How long the expression must be true before the alert fires: Prometheus' `for`."""
    is_alert_only: bool = False
    """Whether only Prometheus finds it: it is about a time range."""

    @property
    def alert(self) -> str:
        """The name of the alert: `gap_open` is `AggregatorGapOpen`, `subscribe_failed` is `SubscribeFailed`."""
        name = f"aggregator_{self.name}" if self.job is Job.STREAM else self.name
        return "".join(word.capitalize() for word in name.split("_"))

    @property
    def alert_expr(self) -> str:
        """The expression of the alert."""
        return self.expr or f'{self.job}_condition{{condition="{self.name}"}} == 1'


def _stream(name: str, severity: Severity, **texts: Any) -> Condition:
    return Condition(name, Job.STREAM, severity, **texts)


def _daemon(name: str, severity: Severity, **texts: Any) -> Condition:
    return Condition(name, Job.DAEMON, severity, **texts)


PAGE, TICKET = Severity.PAGE, Severity.TICKET

NO_COMMIT_SECONDS = 900.0
"""Seconds without an epoch, although logs have unread rows, after which `no_commit` is true."""

LAG_SECONDS = 600.0
"""Age of the newest committed row, with unread rows behind it, from which `lag_high` is true."""

INSTANT_WAIT_SECONDS = 300.0
DAEMON_LAG_SECONDS = 60.0
KEPT_ROWS = 10_000_000
"""Rows that a server keeps in its logs for the daemon, from which `subscribe_logs_kept` is true."""

CLOCK_AHEAD_SECONDS = 5.0
"""Seconds by which a server's clock may be ahead; policies compare times of replicasets."""

RESTARTS, RESTART_SECONDS = 3, 900.0
"""`subscribe_restarts` is true after more than so many restarts within so many seconds."""

DEBT_SHARE, DEBT_BYTES = 0.5, 256 << 20
"""`compaction_debt` is true if more than this share of a table's rows is deleted, in files of more than so many bytes.
Compaction writes a file again at a third, so a table in which it keeps up stays below."""

RELAY_LAG_ROWS = 1_000_000
NODE_LAG_SECONDS = 300.0

_STREAM_CONDITIONS = (
    _stream(
        "down",
        PAGE,
        means="the stream does not answer, or does not run although logs have unread rows",
        found="nothing answers at `metrics.status`, or nobody holds the writer lock",
        advice="is the job running? Its last lines and the log of the metrics (`stopped`, with the error) say why "
        "it ended; "
        "the rows of the [runbook](runbook.md) name each message. `aggregator doctor` says what a start "
        "would "
        "stumble over",
        summary="The stream does not answer at {{ $labels.instance }}",
        expr='up{job="aggregator"} == 0',
        wait="2m",
    ),
    _stream(
        "lock_lost",
        PAGE,
        means="the lease was not renewed for 45 seconds, or is another writer's; the job ends before its next "
        "commit",
        found="by the job's own clock",
        advice="can the store be reached? Is a second job running? Then start one of them again "
        "([one writer](commits.md#one-writer))",
        summary="The stream's writer lock was not renewed in time, or is another writer's",
        expr="aggregator_lock_held == 0",
        wait="30s",
    ),
    _stream(
        "reader_hung",
        PAGE,
        means="the stream's reader of logs does not answer: it has not looked at the logs since long before, and "
        "no batch "
        "is in progress",
        found="by a thread of the driver that does not wait for the reader",
        advice="restart the job: nothing is lost. Is the file system of a source hanging, is the process "
        "`python_streaming_source_runner` stopped?",
        summary="The stream does not look at the logs: the {{ $labels.subject }} does not answer",
        wait="1m",
    ),
    _stream(
        "no_commit",
        PAGE,
        means="logs have unread rows, and there was no epoch for 15 minutes",
        found="the ends of the logs, looked up apart from the reader, against the newest epoch",
        advice="`/metrics`: is a batch in progress (`aggregator_phase_seconds` is of the last one)? A very large "
        "one, or one "
        "that is tried again and again: the job's log says which",
        summary="Logs have rows, and no epoch was committed for {{ $value | humanizeDuration }}",
        expr="time() - aggregator_committed_timestamp_seconds > 900 and on (instance, job) "
        "sum by (instance, job) (aggregator_behind_bytes) > 0",
        wait="5m",
    ),
    _stream(
        "lag_high",
        TICKET,
        means="rows are there and are committed late",
        found="the newest committed row is 10 minutes old, and its source has unread rows",
        advice="as for `batches_slow` in the [runbook](runbook.md). Behind a snapshot or a long pause it "
        "is what it "
        "must be: watch `aggregator_behind_bytes` fall",
        summary="The newest committed row of origin {{ $labels.origin }} from {{ $labels.source }} is "
        "{{ $value | humanizeDuration }} old",
        expr="aggregator_lag_seconds > 600 and on (instance, job, source) aggregator_behind_bytes > 0",
        wait="5m",
    ),
    _stream(
        "batches_slow",
        TICKET,
        means="most batches take longer than `trigger`",
        found="the batches of the last 15 minutes",
        advice="as for `batches_slow` in the [runbook](runbook.md)",
        summary="More than half of the batches take longer than the trigger",
        expr="increase(aggregator_batches_slow_total[15m]) > 0.5 * increase(aggregator_batches_total[15m])",
        wait="15m",
        is_alert_only=True,
    ),
    _stream(
        "source_stale",
        PAGE,
        means="a leading source gave no row for `metrics.stale`",
        found="the time of the last row that was read from it",
        advice="is its server up and written to, is the copy of its files, or the daemon, running? Where a quiet "
        "server is "
        "normal, raise `metrics.stale`",
        summary="The source {{ $labels.source }} gives no rows",
        expr="aggregator_source_stale == 1",
        wait="1m",
    ),
    _stream(
        "clock_ahead",
        TICKET,
        means="rows have times of more than 5 seconds in the future: a server's clock is ahead, and wins where "
        "policies "
        "compare times",
        found="the newest committed row of each origin against this machine's clock",
        advice="set the clocks (NTP) of that server and of this machine",
        summary="The clock of {{ $labels.subject }} is ahead",
        wait="5m",
    ),
    _stream(
        "peer_lost",
        PAGE,
        means="a standby copy is away or behind; the stream continues in a generation that it lacks",
        found="the copy's RID and epoch against those of the primary",
        advice="`/status` (`peers`) says why: is its store there, does another hold its lock? It is joined by "
        "itself when it "
        "is back ([rid.md](rid.md#a-standby-that-the-job-keeps-connected)). `aggregator rid compare` shows both",
        summary="The standby copy {{ $labels.peer }} is not connected",
        expr="aggregator_peer_connected == 0",
        wait="10m",
    ),
    _stream(
        "table_changed",
        PAGE,
        means="somebody else has changed rows or columns of a table, or has enabled a feature of Delta that the "
        "aggregator does not write",
        found="the commits of others after the version that the newest epoch names",
        advice="what the line says: [tables that others change](foreign-changes.md)",
        summary="Somebody else has changed the {{ $labels.subject }}",
    ),
    _stream(
        "table_lost",
        PAGE,
        means="a table is not there, or its folder is an older one than the newest epoch",
        found="the version that the newest epoch names against the table's own",
        advice="put the folder back from a copy of the same time: "
        "[tables that others change](foreign-changes.md#what-to-do)",
        summary="The {{ $labels.subject }} is lost, or is an older copy",
    ),
    _stream(
        "proof_differs",
        PAGE,
        means="keys of a table are not as a live server has them",
        found="the newest comparison in `_validations`, of `prove` in the configuration or of `aggregator prove`",
        advice="`aggregator prove SPACE` names the keys with both tuples, `aggregator who SPACE KEY` their history; "
        "`aggregator snapshot SPACE` takes the server's tuples ([where a log does not say all]"
        "(semantics.md#operations-and-versions-of-the-server))",
        summary="{{ $labels.subject }} is not as a live server has it",
    ),
    _stream(
        "proof_stale",
        TICKET,
        means="not every tuple was compared with a live server, and equal, within `prove.every`",
        found="the oldest of the newest comparisons of each table with each replicaset, in `_validations`",
        advice="the job's log says what is not compared (`proof:`): is a member of each replicaset reachable, does the "
        "stream keep up? Where a round takes longer than half of `prove.every`, raise it or `prove.share_of_time`",
        summary="Not every tuple was proven equal to its server's within prove.every",
        wait="15m",
    ),
    _stream(
        "gap_open",
        PAGE,
        means="lsns are missing in the logs; rows behind them wait",
        found="`_gaps`",
        advice="`SELECT * FROM _gaps`: bring the log back, or name a member that has it under `sources`, then "
        "`aggregator repair`",
        summary="A range of lsns is missing: {{ $labels.subject }}",
        wait="5m",
    ),
    _stream(
        "divergence",
        PAGE,
        means="two logs have different rows under one lsn",
        found="`_gaps`, kind `divergence`",
        advice="find out which member is right, then `aggregator heal SOURCE`: "
        "[healing](corrections.md#healing-a-divergence)",
        summary="Two logs differ under one lsn: {{ $labels.subject }}",
        wait="1m",
    ),
    _stream(
        "rows_waiting",
        PAGE,
        means="rows wait in `_pending`",
        found="`_pending`",
        advice="`SELECT reason, count(*) FROM _pending GROUP BY 1`; each reason is a row of the "
        "[runbook](runbook.md). A synchronous transaction waits until it is confirmed: is there a quorum?",
        summary="{{ $value }} rows of the replicaset {{ $labels.replicaset }} wait in _pending",
        expr="aggregator_rows_waiting > 0",
        wait="15m",
    ),
    _stream(
        "instant_waits",
        TICKET,
        means="a source has waited at an instant for more than 5 minutes, since another replicaset has not "
        "reached it",
        found="the stream's offset",
        advice="`aggregator status` names both. Was the marker written to all replicasets, and does the other "
        "one's source "
        "give rows? After `instants.wait` it continues by itself, without that instant",
        summary="The source {{ $labels.source }} waits at an instant that another replicaset has not reached",
        expr="aggregator_instant_wait_seconds > 300",
        wait="1m",
    ),
    _stream(
        "spaces_refused",
        TICKET,
        means="spaces go to no table, or their table stays as it was",
        found="`_schema`, state `refused`",
        advice="`SELECT name, state FROM _schema`; [why](semantics.md#what-is-refused-by-name). It is true until "
        "the space "
        "is changed, renamed, dropped or excluded; where types differ, `spaces.per_replicaset` gives each "
        "replicaset a "
        "table of its own",
        summary="{{ $value }} spaces of the replicaset {{ $labels.replicaset }} go to no table",
        expr="aggregator_spaces_refused > 0",
        wait="1m",
    ),
    _stream(
        "rows_set_aside",
        PAGE,
        means="keys are in no table, since a row of theirs could not be keyed or applied",
        found="rows of `_quarantine` without `misfits` whose key has got no sound version since",
        advice="`SELECT space, reason, count(*) FROM _quarantine WHERE misfits IS NULL GROUP BY 1, 2`: mend the "
        "policy, or "
        "the space, then `aggregator rebuild SPACE`",
        summary="Rows of {{ $labels.subject }} were set aside and are in no table",
    ),
    _stream(
        "misfits",
        TICKET,
        means="rows are in their table with a column that is NULL since it cannot hold their value",
        found="the column `_misfits` of the tables that `_quarantine` names",
        advice="the row's `_misfits` and `_quarantine` name the column; often a choice under `types` (such as "
        "`decimal: string`), or `spaces.strings: binary`, then `aggregator rebuild SPACE`",
        summary="Rows of {{ $labels.subject }} have a value that its column cannot hold",
    ),
    _stream(
        "disk_full",
        PAGE,
        means="the disk of the warehouse or of the checkpoint has no room for a batch",
        found="the free space of their folders, if they are local",
        advice="free disk space there (`aggregator maintain --keep-days 7` removes old files), then start the job "
        "again",
        summary="{{ $labels.subject }} has no room",
        wait="1m",
    ),
    _stream(
        "compaction_debt",
        TICKET,
        means="more than half of a table's rows are deleted by deletion vectors: compaction does not keep up, and "
        "readers read twice what they need",
        found="the logs of the tables with deletion vectors: more than 256 MiB wait for compaction",
        advice="`aggregator maintain` writes these files again ([what compaction does]"
        "(scaling.md#what-a-batch-costs)); do batches fail to compact since others commit to the table? The log of "
        "the job says so (`is not compacted after this batch`)",
        summary="{{ $value | humanizePercentage }} of the rows of {{ $labels.table }} are deleted",
        expr="aggregator_deleted_rows_ratio > 0.5 and aggregator_compaction_debt_bytes > 268435456",
        wait="1h",
    ),
)

_DAEMON_CONDITIONS = (
    _daemon(
        "subscribe_down",
        PAGE,
        means="the daemon does not run, or does not answer",
        found="nothing answers at `subscribe.status`, or nobody holds the lock of the spool",
        advice="start it again (`aggregator subscribe`): it needs the spool alone. Servers keep their logs for "
        "it, see "
        "`SubscribeLogsKept`",
        summary="The daemon does not answer at {{ $labels.instance }}",
        expr='up{job="subscribe"} == 0',
        wait="2m",
    ),
    _daemon(
        "subscribe_failed",
        PAGE,
        means="nothing of a replicaset can be received: an error, or no peer feeds it",
        found="the error of the last step, and the time since when no stream runs",
        advice="`/status` says why (`error`, and `left_out` of each peer): passwords, rights, addresses; "
        "[what it does](live.md#what-happens-when) for each event. Others continue",
        summary="Nothing of the replicaset {{ $labels.replicaset }} can be received",
        expr="subscribe_failed == 1",
        wait="1m",
    ),
    _daemon(
        "subscribe_peer_gone",
        TICKET,
        means="a peer does not answer, or cannot be used; while another one feeds its rows nothing is late",
        found="the peer's last answer, and the reason why it is left out",
        advice="is the server up, and reachable? Its own log says whom it refused. `/status` has the reason "
        "(`left_out`)",
        summary="The peer {{ $labels.peer }} of the replicaset {{ $labels.replicaset }} does not answer",
        expr="subscribe_connected == 0",
        wait="5m",
    ),
    _daemon(
        "subscribe_spool_full",
        PAGE,
        means="the disk of the spool is full: nothing is received, nothing is lost",
        found="a write that failed",
        advice="make room; is the stream running, so that the spool can be cleaned?",
        summary="There is no room for the spool of {{ $labels.replicaset }}",
        expr="subscribe_spool_full == 1",
        wait="1m",
    ),
    _daemon(
        "subscribe_lag_high",
        TICKET,
        means="the spool is a minute behind a server, or has not heard of any for a minute",
        found="the peers' vclocks against the spool's",
        advice="is the network, or the disk of the spool, at its limit? `/status` shows who feeds what",
        summary="The spool of {{ $labels.replicaset }} is {{ $value | humanizeDuration }} behind replica id "
        "{{ $labels.replica_id }}",
        expr="subscribe_lag_seconds > 60",
        wait="5m",
    ),
    _daemon(
        "subscribe_logs_kept",
        TICKET,
        means="a server keeps ten million rows in its logs for the daemon",
        found="the server's `_gc_consumers`",
        advice="is the stream running, so that it acknowledges? Else the servers' disks fill: [kept "
        "logs](live.md#kept-logs)",
        summary="The server {{ $labels.peer }} keeps {{ $value | humanize }} rows in its logs for the daemon",
        expr="subscribe_kept_rows > 1e7",
        wait="15m",
    ),
    _daemon(
        "subscribe_restarts",
        TICKET,
        means="a replicaset begins again and again",
        found="more than 3 restarts within 15 minutes",
        advice="`/status`: `error` says why; often a peer that answers and then refuses",
        summary="The replicaset {{ $labels.replicaset }} began again {{ $value | humanize }} times in 15 minutes",
        expr="increase(subscribe_restarts_total[15m]) > 3",
    ),
)

_RELAY_CONDITIONS = (
    Condition(
        "relay_failed",
        Job.RELAY,
        PAGE,
        means="the relay cannot read a spool, or cannot acknowledge",
        found="the error of its last attempt",
        advice="`/status` says which (`error`, `acknowledgement_error`): rights on the spool's folder, a damaged "
        "file",
        summary="The relay cannot read the spool {{ $labels.spool }}, or cannot acknowledge",
        expr="relay_failed == 1",
        wait="1m",
    ),
    Condition(
        "relay_lag_high",
        Job.RELAY,
        TICKET,
        means="a subscriber of the relay has not acknowledged a million rows",
        found="the subscriber's acknowledgements",
        advice="is it running, and does it apply? Its own `box.info.replication` says",
        summary="{{ $labels.exported_instance }} has not acknowledged {{ $value | humanize }} rows of {{ "
        "$labels.spool }}",
        expr="relay_lag_rows > 1e6",
        wait="15m",
    ),
    Condition(
        "relay_wrong_passwords",
        Job.RELAY,
        TICKET,
        means="somebody tries passwords at the relay, or a subscriber has an old one",
        found="more than 10 wrong passwords in 15 minutes",
        advice="`/status` counts them; [security.md](security.md)",
        summary="{{ $value | humanize }} wrong passwords in 15 minutes at the relay of {{ $labels.spool }}",
        expr="increase(relay_wrong_passwords_total[15m]) > 10",
        is_alert_only=True,
    ),
    Condition(
        "node_failed",
        Job.NODE,
        PAGE,
        means="the stream of decided tables has stopped",
        found="the error of its last attempt",
        advice="`/status` of the node says why; start it again",
        summary="The stream of decided tables has stopped",
        expr="node_failed == 1",
        wait="1m",
    ),
    Condition(
        "node_lag_high",
        Job.NODE,
        TICKET,
        means="subscribers get epochs more than 5 minutes late",
        found="the newest epoch against the one that subscribers can have",
        advice="is the node's machine at its limit? A rebuild writes a whole table at once",
        summary="Subscribers cannot have epochs of the last {{ $value | humanizeDuration }}",
        expr="node_lag_seconds > 300",
        wait="5m",
    ),
)

CONDITIONS: Mapping[str, Condition] = {
    one.name: one for one in (*_STREAM_CONDITIONS, *_DAEMON_CONDITIONS, *_RELAY_CONDITIONS)
}
"""All conditions by name, in the order in which they are shown."""
