"""The metrics and warnings of batches and triggers, without Spark."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from observe.metrics.committed_batches import CommittedBatch, OriginRows, PendingCounts
from observe.metrics.stream_metrics import StreamMetrics, TriggerReport, parse_trigger_report
from warehouse.copies.standbys import StandbyState
from warehouse.system_tables.gaps import Gap

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
GAP = Gap(1, "a1", 2, 5, 7, "missing", "open", "7.xlog")


class Clock:
    def __init__(self) -> None:
        self.time = NOON.timestamp()

    def __call__(self) -> float:
        return self.time


def origin(
    source: str = "a1", rows: int = 3, newest: datetime | None = NOON, global_id: int = 2
) -> OriginRows:
    return OriginRows(source, 1, global_id, rows, newest)


def batch(number: int = 0, **parts: Any) -> CommittedBatch:
    return CommittedBatch(number, "q", number, NOON, 3, **parts)


def report(number: int = 0, took: float = 1.0, *leaders: str) -> TriggerReport:
    return TriggerReport(
        "q", number, {"triggerExecution": took, "addBatch": took - 0.5}, frozenset(leaders or ("a1",))
    )


def samples(metrics: StreamMetrics) -> dict[tuple[str, ...], float]:
    """Return the values of the exported samples by (metric, label values in the order of the label names)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (s.name, *(s.labels[name] for name in sorted(s.labels))): s.value
        for family in families
        for s in family.samples
    }


def test_rows_conflicts_and_quarantine_are_summed_over_batches() -> None:
    metrics = StreamMetrics(5, None)
    for number in (0, 1):
        metrics.count_batch(
            batch(
                number,
                origins=(origin(),),
                conflicts_by_space={"accounts": 2},
                quarantined_by_space={"t": 3, "u": 1},
                misfits_by_space={"t": 1},
            )
        )
    found = samples(metrics)
    assert found["aggregator_epoch",] == 1
    assert found["aggregator_committed_timestamp_seconds",] == NOON.timestamp()
    assert found["aggregator_rows_total", "a1"] == 6
    assert found["aggregator_conflicts_total", "accounts"] == 4
    assert found["aggregator_quarantined_total", "t"] == 6
    assert found["aggregator_misfits_total", "t"] == 2
    assert found["aggregator_set_aside_total", "t"] == 4
    assert ("aggregator_misfits_total", "u") not in found


def test_pending_rows_are_the_current_ones() -> None:
    metrics = StreamMetrics(5, None)
    metrics.count_batch(batch(origins=(origin(),)))
    metrics.set_pending(PendingCounts({1: 4}, {2: 1}))
    found = samples(metrics)
    assert (found["aggregator_rows_waiting", "1"], found["aggregator_rows_waiting", "2"]) == (4, 0)
    assert (found["aggregator_spaces_refused", "1"], found["aggregator_spaces_refused", "2"]) == (0, 1)
    metrics.set_pending(PendingCounts())
    assert {samples(metrics)["aggregator_rows_waiting", one] for one in "12"} == {0}


def test_a_lost_lock_is_exported() -> None:
    is_held = [True]
    metrics = StreamMetrics(5, None, is_lock_held=lambda: is_held[0])
    assert samples(metrics)["aggregator_lock_held",] == 1
    is_held[0] = False
    assert samples(metrics)["aggregator_lock_held",] == 0


def test_lag_is_the_age_of_the_newest_row_of_each_origin_and_grows() -> None:
    clock = Clock()
    metrics = StreamMetrics(5, None, now=clock)
    early = NOON - timedelta(seconds=30)
    rows = (origin(newest=NOON, global_id=2), origin(newest=early, global_id=3), origin("snap", newest=None))
    metrics.count_batch(batch(origins=rows))
    # A later batch has older rows; the newest row stays the same.
    metrics.count_batch(batch(1, origins=(origin(newest=early, global_id=2),)))
    clock.time += 10
    found = samples(metrics)
    assert found["aggregator_lag_seconds", "2", "1", "a1"] == 10
    assert found["aggregator_lag_seconds", "3", "1", "a1"] == 40
    assert not [key for key in found if key[0] == "aggregator_lag_seconds" and key[-1] == "snap"]
    assert {one["origin"]: one["lag_seconds"] for one in metrics.status()["lag"]} == {"2": 10, "3": 40}


def test_a_gap_is_reported_once_and_counted_until_it_is_filled() -> None:
    metrics = StreamMetrics(5, None, [GAP])
    assert samples(metrics)["aggregator_gaps_open",] == 1
    other = Gap(1, "a1", 2, 9, 9, "missing", "open", "9.xlog")
    (warning,) = metrics.count_batch(batch(changed_gaps=(other,)))
    assert (warning.name, warning.details["first_lsn"]) == ("gap_open", 9)
    assert "lsns 9 to 9 are missing before 9.xlog; rows behind it wait" in warning.message
    assert samples(metrics)["aggregator_gaps_open",] == 2
    filled = Gap(1, "a1", 2, 5, 7, "missing", "filled", "7.xlog")
    assert metrics.count_batch(batch(1, changed_gaps=(filled,))) == []
    assert samples(metrics)["aggregator_gaps_open",] == 1
    skipped = Gap(2, "b1", 1, 1, 2, "missing", "skipped", "1.xlog")
    (warning,) = metrics.count_batch(batch(2, changed_gaps=(skipped,)))
    assert warning.message.endswith("it was skipped")
    assert samples(metrics)["aggregator_gaps_open",] == 1


def test_a_divergence_has_its_own_warning() -> None:
    metrics = StreamMetrics(5, None)
    (warning,) = metrics.count_batch(batch(changed_gaps=(Gap(1, "a1", 2, 5, 7, "divergence", "open", None),)))
    assert warning.name == "divergence"
    assert (
        metrics.count_batch(batch(1, changed_gaps=(Gap(1, "a1", 2, 5, 7, "divergence", "healed", None),)))
        == []
    )
    assert samples(metrics)["aggregator_gaps_open",] == 0


def test_only_a_leader_silent_for_too_long_is_stale_and_is_reported_once() -> None:
    clock = Clock()
    metrics = StreamMetrics(5, 60, now=clock)
    metrics.count_batch(batch(origins=(origin("a1"), origin("a2"))))
    assert metrics.count_trigger(report(0, 1.0, "a1"), True) == []
    clock.time += 61
    idle = report(1, 0.1, "a1")
    (warning,) = metrics.count_trigger(idle, False)
    assert (warning.name, warning.details) == ("source_stale", {"source": "a1", "silent_seconds": 61.0})
    assert metrics.count_trigger(idle, False) == []
    assert samples(metrics)["aggregator_source_stale", "a1"] == 1
    assert metrics.status()["stale"] == ["a1"]
    (back,) = metrics.count_batch(batch(1, origins=(origin("a1"),)))
    assert (back.name, metrics.status()["stale"]) == ("source_back", [])
    assert samples(metrics)["aggregator_source_stale", "a1"] == 0


def test_a_source_without_any_row_becomes_stale_too() -> None:
    clock = Clock()
    metrics = StreamMetrics(5, 60, now=clock)
    assert metrics.count_trigger(report(0, 1.0, "b1"), False) == []
    clock.time += 61
    assert [warning.name for warning in metrics.count_trigger(report(1, 1.0, "b1"), False)] == [
        "source_stale"
    ]


def test_a_wait_at_an_instant_grows_until_it_ends() -> None:
    clock = Clock()
    metrics = StreamMetrics(5, None, now=clock)
    waits = replace(report(0, 1.0, "a1", "b1"), waiting_since_by_leader={"a1": clock.time - 7})
    metrics.count_trigger(waits, True)
    found = samples(metrics)
    assert (
        found["aggregator_instant_wait_seconds", "a1"],
        found["aggregator_instant_wait_seconds", "b1"],
    ) == (7, 0)
    clock.time += 60
    assert samples(metrics)["aggregator_instant_wait_seconds", "a1"] == 67
    metrics.count_trigger(report(1, 1.0, "a1", "b1"), True)
    assert samples(metrics)["aggregator_instant_wait_seconds", "a1"] == 0


def test_a_batch_longer_than_the_trigger_is_reported() -> None:
    metrics = StreamMetrics(5, None)
    assert metrics.count_trigger(report(0, 5.0), True) == []
    (warning,) = metrics.count_trigger(report(1, 5.1), True, {"_changelog": 2.5})
    assert warning.message == "batch 1 took 5.1 s, longer than the trigger of 5.0 s"
    found = samples(metrics)
    assert (found["aggregator_batches_total",], found["aggregator_batches_slow_total",]) == (2, 1)
    assert found["aggregator_phase_seconds", "triggerExecution"] == 5.1
    assert found["aggregator_phase_seconds", "step__changelog"] == 2.5
    assert found["aggregator_batch_seconds_count",] == 2
    assert found["aggregator_batch_seconds_bucket", "5.0"] == 1
    # A trigger without rows is no batch.
    assert metrics.count_trigger(report(2, 9.0), False) == []
    assert StreamMetrics(None, None).count_trigger(report(0, 999.0), True) == []


def test_a_progress_report_of_spark_is_parsed() -> None:
    end = '{"replicasets": {"u": {"leader": "a1", "file": "1.xlog", "position": 10, "vclock": {}}}, "version": 1}'
    latest = end.replace("10", "35")
    progress = {"id": "q", "batchId": 7, "durationMs": {"addBatch": 1500}}
    found = parse_trigger_report({**progress, "sources": [{"endOffset": end, "latestOffset": latest}]})
    assert found == TriggerReport("q", 7, {"addBatch": 1.5}, frozenset({"a1"}), {"a1": 25})
    other = latest.replace("1.xlog", "2.xlog")
    assert (
        parse_trigger_report(
            {**progress, "sources": [{"endOffset": end, "latestOffset": other}]}
        ).unread_bytes_by_leader
        == {}
    )
    assert parse_trigger_report({"batchId": 0, "sources": [{"endOffset": None}]}).leaders == frozenset()
    assert parse_trigger_report({"batchId": 0}).seconds_by_phase == {}


def test_the_status_says_why_a_peer_is_not_connected() -> None:
    states = [StandbyState("/b", True, 4), StandbyState("/c", False, 2, "there is no such folder")]
    metrics = StreamMetrics(5, None, standbys=lambda: states)
    found = samples(metrics)
    assert (found["aggregator_peer_connected", "/b"], found["aggregator_peer_connected", "/c"]) == (1, 0)
    assert metrics.status()["peers"][1] == {
        "root": "/c",
        "is_connected": False,
        "epoch": 2,
        "reason": "there is no such folder",
    }
    assert "peers" not in StreamMetrics(5, None).status()


@pytest.mark.parametrize(
    ("state", "since"), [("waiting", {"a1": 5.0}), ("whole", {}), ("done", {}), ("missed", {})]
)
def test_the_report_has_the_leaders_that_wait_at_an_instant(state: str, since: dict[str, float]) -> None:
    entry: dict[str, Any] = {"leader": "a1", "file": "1.xlog", "position": 10, "vclock": {}}
    entry["instant"] = {
        "label": "p",
        "time": 5_000_000,
        "lsns": {"1": 3},
        "state": state,
        "rows": 0,
        "end": 0,
    }
    end = {"replicasets": {"u": entry, "v": {**entry, "leader": "b1", "instant": None}}, "version": 1}
    found = parse_trigger_report(
        {"id": "q", "batchId": 7, "sources": [{"endOffset": end, "latestOffset": end}]}
    )
    assert found.waiting_since_by_leader == since
