"""Renders the page from facts, without Spark or a browser: durations of points, kinds of plots, escaped text."""

import json
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest

from observe.report.charts import MAX_COLOURS, _line_numbers, charts, duration_in_words, winner_over_loser
from observe.report.facts import (
    HOUR_MILLISECONDS,
    POINT_MILLISECONDS,
    TARGET_POINTS,
    PageFacts,
    TableSize,
    choose_point_milliseconds,
)
from observe.report.page import (
    MAX_SHOWN_CHARACTERS,
    duration_text,
    fields_text,
    key_figures,
    render_page,
    replicaset_details,
    shared_replica_ids,
    short_tuple_text,
)
from schemas.problems import problem

EVIL = "<script>console.error('evil')</script>"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def facts(**answers: Sequence[Mapping[str, Any]]) -> PageFacts:
    buckets = dict.fromkeys(("rows_over_time", "lag_over_time", "conflicts_over_time"), 60_000)
    return PageFacts("/data/aggregator.db", "aggregator", None, NOON, answers, buckets)


def member(replicaset: int, local_id: int | None, global_id: int | None, **more: Any) -> dict[str, Any]:
    row = {
        "replicaset_id": replicaset,
        "replicaset_uuid": f"replicaset-{replicaset}",
        "local_id": local_id,
        "global_id": global_id,
        "uuid": None if global_id is None else f"uuid-{global_id}",
        "first_seen": NOON,
        "expelled_at": None,
        "lsn": 7,
    }
    return {**row, **more}


@pytest.mark.parametrize(
    "span", [timedelta(0), timedelta(seconds=3), timedelta(hours=30), timedelta(days=4000)]
)
def test_a_plot_has_at_most_its_maximum_of_points(span: timedelta) -> None:
    step = choose_point_milliseconds(NOON, NOON + span)
    points = span / timedelta(milliseconds=step)
    assert points <= TARGET_POINTS
    shorter = [one for one in POINT_MILLISECONDS if one < step]
    assert not shorter or span / timedelta(milliseconds=shorter[-1]) > TARGET_POINTS


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (HOUR_MILLISECONDS, "1 hour"),
        (5 * 60_000, "5 minutes"),
        (200, "200 milliseconds"),
        (86_400_000, "1 day"),
    ],
)
def test_durations_are_written_in_words(length: int, words: str) -> None:
    assert duration_in_words(length) == words


@pytest.mark.parametrize(("sources", "colour"), [(1, "of"), (MAX_COLOURS, "of"), (MAX_COLOURS + 1, "value")])
def test_many_sources_are_drawn_as_a_heat_map(sources: int, colour: str) -> None:
    rows = [{"source": f"s{number}", "at": NOON, "rows": 3} for number in range(sources)]
    (chart,) = charts(facts(rows_over_time=rows))
    assert chart.spec["encoding"]["color"]["field"] == colour
    assert len(chart.spec["data"]["values"]) == sources
    assert chart.spec["data"]["values"][0]["to"] == "2026-11-20T12:01:00+00:00"


def test_sources_are_ordered_by_their_numbers() -> None:
    moments = (NOON, NOON + timedelta(minutes=1))
    rows = [{"source": f"s{number}", "at": at, "lag": 1.0} for number in (10, 9, 1) for at in moments]
    (chart,) = charts(facts(lag_over_time=rows))
    assert chart.spec["encoding"]["color"]["sort"] == ["s1", "s9", "s10"]


@pytest.mark.parametrize(
    ("winner", "loser", "text"),
    [(1, 2, "1 over 2"), (-3, 2, "merged, last by 3 over 2"), (None, 2, "deleted over 2")],
)
def test_the_text_of_winner_and_loser(winner: int | None, loser: int, text: str) -> None:
    assert winner_over_loser({"winner": winner, "loser": loser}) == text


def test_only_colliding_ids_are_listed() -> None:
    found = facts(
        instances=[member(0, 1, 1), member(1, 1, 2), member(1, 2, 3), member(2, 1, 4), member(2, None, 5)]
    )
    assert shared_replica_ids(found) == [(1, 2)]
    assert [one["id"] for one in replicaset_details(found)] == [1, 2]


def test_applier_maps_are_shown_if_an_id_meant_two_instances_or_differs_by_source() -> None:
    entry = {"replicaset_id": 1, "source": None, "local_id": 1, "global_id": 2, "since_lsn": 5}
    again = {**entry, "global_id": 9, "since_lsn": 70}
    differs = {**entry, "local_id": 3, "source": "a2"}
    (one,) = replicaset_details(facts(instances=[member(1, 1, 2)], applier_map=[entry]))
    assert one["maps"] == []
    (one,) = replicaset_details(facts(instances=[member(1, 1, 2)], applier_map=[entry, again, differs]))
    assert one["maps"] == [entry, again, differs]


def test_the_summary_marks_numbers_that_need_attention() -> None:
    gap = {"state": "open", "whole": 1}
    found = {
        name: (count, alarm)
        for name, count, alarm in key_figures(facts(gaps=[gap, {**gap, "state": "filled"}]))
    }
    assert found["open gaps"] == (1, True)
    assert found["quarantined"] == (0, False)


def test_what_needs_attention_is_the_first_thing_on_the_page() -> None:
    found = [
        problem("misfits", "table t", "2 rows have a NULL"),
        problem("gap_open", "replicaset a", f"lsns 1 to 2 of {EVIL}"),
    ]
    page = render_page(replace(facts(), problems=found, failed_queries={"lag_over_time": EVIL}))
    text = page[page.index('id="attention"') : page.index('id="summary"')]
    shown = ['ticket</span> <span class="condition">misfits', 'page</span> <span class="condition">gap_open']
    assert all(one in text for one in shown)
    assert text.index(shown[1]) < text.index(shown[0]), "what cannot wait comes first"
    assert 'This page lacks "lag_over_time"' in text
    assert EVIL not in page
    assert "Nothing needed attention" in render_page(replace(facts(), problems=()))
    assert "Not known: only Spark" in render_page(facts())


def test_a_daemon_that_wrote_a_spool_is_no_instance() -> None:
    rows = [member(1, 1, 2), member(1, None, 3)]
    counts = {name: count for name, count, _ in key_figures(facts(instances=rows))}
    assert counts["instances"] == 1
    (one,) = replicaset_details(facts(instances=rows))
    assert [row["global_id"] for row in one["subscribers"]] == [3]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (msgpack.packb([1, "x"]), "[1, 'x']"),
        (msgpack.packb({1: [None]}), "{1: [None]}"),
        (b"\xc1", "c1"),
        (b"\x92\x01", "9201"),
        (b"\x81\x90\x01", "819001"),
        (b"\x91" * 1010 + b"\xc0", ("91" * 1010 + "c0")[:MAX_SHOWN_CHARACTERS] + "…"),
        (msgpack.packb([b"\xff".decode("latin-1") * 900])[:0], ""),
        (None, "—"),
    ],
)
def test_any_bytes_are_shown_as_text(data: bytes | None, text: str) -> None:
    assert short_tuple_text(data) == text


def test_a_long_tuple_is_cut_off() -> None:
    assert short_tuple_text(msgpack.packb(["x" * 5000])).endswith("…")


def test_a_line_is_broken_where_nothing_was_committed_for_long() -> None:
    begin = datetime(2026, 11, 26, 12, tzinfo=UTC)
    seconds = [0, 2, 4, 6, 66, 68]
    rows = [
        {"source": name, "at": begin + timedelta(seconds=second), "lag": 1.0}
        for second in seconds
        for name in ("a", "b")
    ]
    assert _line_numbers(rows, 2000) == [0] * 8 + [1] * 4
    assert _line_numbers(rows[:2], 2000) == [0, 0]


def test_formats_and_keys_are_one_line() -> None:
    fields = [
        {"name": "id", "type": "unsigned", "is_nullable": False},
        {"name": "n", "type": "any", "is_nullable": True},
    ]
    assert fields_text(json.dumps(fields)) == "id unsigned, n any?"
    assert fields_text(json.dumps([{"field": 2, "type": "string", "path": ""}])) == "#3 string"
    assert fields_text("[]") == "—"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "—"), (1.25, "1.2 s"), (600, "10.0 min"), (864_000, "10.0 d")]
)
def test_durations_are_shown_in_a_fitting_unit(value: float | None, text: str) -> None:
    assert duration_text(value) == text


def test_text_of_logs_is_escaped() -> None:
    evil = '</script><img src=x onerror="alert(1)">'
    row = {
        "reason": evil,
        "space": evil,
        "replicaset_id": 1,
        "rows": 1,
        "lsn": 1,
        "file": evil,
        "first_epoch": 0,
    }
    points = [{"source": evil, "at": NOON, "rows": 1}]
    answers = {"epochs": [], "quarantine": [{**row, "last_epoch": 0, "whole": 1}], "rows_over_time": points}
    page = render_page(facts(**answers))
    assert "<img src=x" not in page
    assert page.count("</script>") == 3
    assert page.count("&lt;img src=x") == 3


def test_unprintable_characters_are_escaped() -> None:
    row = {"reason": "x\0y\u202ez", "space": "a", "replicaset_id": 1, "rows": 1, "lsn": 1, "file": "f"}
    page = render_page(facts(quarantine=[{**row, "first_epoch": 0, "last_epoch": 0, "whole": 1}]))
    assert r"x\x00y\u202ez" in page
    assert "\0" not in page
    assert "\u202e" not in page


def test_thousands_are_separated_by_commas() -> None:
    row = {"reason": "a", "space": "a", "replicaset_id": 1, "rows": 1_234_567, "lsn": 1, "file": "f"}
    page = render_page(facts(quarantine=[{**row, "first_epoch": 0, "last_epoch": 0, "whole": 1}]))
    assert '<td class="number">1,234,567</td>' in page


def test_failed_results_of_validation_and_proof_are_shown() -> None:
    result = {"validated_at": NOON, "table": "orders", "expectation": "each key is as …", "unexpected": 1}
    bad = {**result, "holds": False, "examples": '["key [5]: server <b>"]', "error": None}
    good = {**result, "table": "calm", "holds": True, "examples": None, "error": None}
    shown = facts(validations=[bad, good])
    assert ("not as expected", 1, True) in key_figures(shown)
    page = render_page(shown)
    assert "1 results of the newest runs hold, 1 do not." in page
    assert "key [5]: server &lt;b&gt;" in page
    assert "calm" not in page.partition('id="validation"')[2].partition("</section>")[0]
    assert "Nothing was validated yet" in render_page(facts())
    assert "not as expected" not in {one[0] for one in key_figures(facts())}


def test_a_warehouse_that_only_spark_opens_says_so() -> None:
    page = render_page(facts())
    assert "Sizes are not known" in page
    assert "No batch is done yet" in page
    sized = facts()
    page = render_page(PageFacts(**{**vars(sized), "sizes": (TableSize("accounts", 3, 2, 2048, None),)}))
    assert "2 KiB" in page


def test_the_scripts_are_those_of_the_locked_vl_convert() -> None:
    root = Path(__file__).resolve().parents[3]
    bundle = runpy.run_path(str(root / "setup" / "page_scripts.py"))["bundle"]
    assert (root / "observe" / "report" / "vega.js").read_text(encoding="utf-8") == bundle()
