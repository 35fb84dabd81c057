"""The plots of the report page, as Vega-Lite JSON. No I/O.

Few sources or spaces are drawn as lines or stacked bars, each in its colour; more than `MAX_COLOURS` as a heat map of
time and name, which stays readable. Colours, fonts and light or dark mode come from the page's script. Format:
https://vega.github.io/vega-lite/docs/spec.html
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

from observe.report.facts import HOUR_MILLISECONDS, PageFacts, Row
from schemas.units import DURATION_UNITS, SIZE_UNITS

VEGA_LITE_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""Identifies the version of the format; nothing is fetched from this URL."""

MAX_COLOURS = 8
"""Maximum number of sources or spaces in a plot that have a colour each."""

MAX_BARS = 30

BAR_HEIGHT_PIXELS = 18
HEAT_HEIGHT_PIXELS = 13
"""Of a line of a heat map: its name is 10 pixels high."""

BROKEN_AFTER_POINTS = 3
"""A line is broken where its next point comes later than so many usual distances of its points."""


_TEXT_AND_DIGITS = re.compile(r"(\D*)(\d*)")

COUNT_AXIS = {"labelExpr": "datum.value % 1 ? '' : format(datum.value, ',')"}
"""An axis, or a legend, of whole numbers: ticks between them have no label."""


@dataclass(frozen=True)
class Chart:
    """One plot."""

    name: str
    """Id of the plot's HTML element."""
    title: str
    note: str
    """Explanation under the title."""
    spec: Mapping[str, Any]
    """The Vega-Lite specification."""


def winner_over_loser(row: Row) -> str:
    """Return the replicaset ids of a conflict's winner and loser as text, such as `1 over 2`."""
    winner, loser = row["winner"], row["loser"]
    if winner is None:
        return f"deleted over {loser}"
    who = f"merged, last by {-winner}" if winner < 0 else str(winner)
    return f"{who} over {'?' if loser is None else loser}"


def charts(facts: PageFacts) -> Iterator[Chart]:
    """Yield the plots that have data."""
    rows, lag = facts.rows("rows_over_time"), facts.rows("lag_over_time")
    if rows:
        step = facts.point_milliseconds_by_query["rows_over_time"]
        note = f"By the times of the rows in the log, UTC; a point represents {duration_in_words(step)}."
        spec = _plot_over_time(rows, step, "rows", "rows")
        yield Chart("rows", "Rows of each source over time", note, spec)
    if len({row["at"] for row in lag}) > 1:
        step = facts.point_milliseconds_by_query["lag_over_time"]
        note = (
            "How long a source's oldest row of a batch had waited when the batch was committed, by the time of the "
            f"commit, UTC; the longest within {duration_in_words(step)}. Logs that were read late show their age. A "
            "line is broken where no batch with rows of the source was committed for long."
        )
        unit, length = _unit_of(max(row["lag"] for row in lag), DURATION_UNITS)
        waits = [{**row, "lag": row["lag"] / length} for row in lag]
        spec = _plot_over_time(waits, step, "lag", f"wait, {unit}", as_lines=True)
        yield Chart("lag", "Longest wait of a row of each source over time", note, spec)
    if facts.rows("conflicts"):
        yield _conflicts_by_space_chart(facts.rows("conflicts"))
    over_time = facts.rows("conflicts_over_time")
    if over_time:
        step = facts.point_milliseconds_by_query["conflicts_over_time"]
        note = f"By the time of the version that won, UTC; a point represents {duration_in_words(step)}."
        by_space = _conflicts_by_space(over_time)
        names = _spaces_with_most(by_space)
        if len(by_space) > MAX_BARS:
            note += f" The {MAX_BARS} spaces with the most conflicts."
        shown = [{**row, "source": row["space"]} for row in over_time if row["space"] in names]
        spec = _plot_over_time(shown, step, "conflicts", "conflicts", source_title="space")
        yield Chart("conflicts_over_time", "Conflicts over time", note, spec)
    if facts.sizes:
        yield _table_sizes_chart(facts)


def duration_in_words(milliseconds: int) -> str:
    """Return a duration in words, such as `5 minutes`."""
    units = (
        ("day", 86_400_000),
        ("hour", 3_600_000),
        ("minute", 60_000),
        ("second", 1000),
        ("millisecond", 1),
    )
    for unit, length in units:
        if milliseconds % length == 0 and milliseconds >= length:
            count = milliseconds // length
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{milliseconds} milliseconds"


def _plot_over_time(
    rows: Sequence[Row],
    point_milliseconds: int,
    value_column: str,
    value_title: str,
    *,
    source_title: str = "source",
    as_lines: bool = False,
) -> dict[str, Any]:
    values: list[dict[str, Any]] = [
        {
            "at": _iso_time_text(r["at"]),
            "to": _iso_time_text(r["at"], point_milliseconds),
            "of": str(r["source"]),
            "value": float(r[value_column]),
        }
        for r in rows
    ]
    names = sorted({str(r["source"]) for r in rows}, key=_natural_sort_key)
    axis = {
        "format": _axis_time_format(point_milliseconds),
        "labelOverlap": True,
        "tickCount": {"expr": "ceil(width / 110)"},
    }
    x = {"field": "at", "type": "temporal", "scale": {"type": "utc"}, "title": None, "axis": axis}
    tooltip = [
        {"field": "of", "type": "nominal", "title": source_title},
        {
            "field": "at",
            "type": "temporal",
            "title": "from",
            "format": "%Y-%m-%d %H:%M:%S",
            "scale": {"type": "utc"},
        },
        {"field": "value", "type": "quantitative", "title": value_title},
    ]
    colour = {"field": "of", "type": "nominal", "sort": names, "title": source_title}
    numbers = {} if as_lines else COUNT_AXIS
    y = {"field": "value", "type": "quantitative", "title": value_title, "axis": numbers}
    if len(names) > MAX_COLOURS:
        height = HEAT_HEIGHT_PIXELS * len(names)
        heat = {
            **{"field": "value", "type": "quantitative", "title": value_title},
            **{"scale": {"type": "sqrt"}, "legend": numbers},
        }
        rows_of = {
            "field": "of",
            "type": "nominal",
            "sort": names,
            "title": None,
            "axis": {"labelOverlap": True},
        }
        encoding = {"x": x, "x2": {"field": "to"}, "y": rows_of, "color": heat, "tooltip": tooltip}
        return _vega_specification(values, {"type": "rect"}, encoding, height)
    if as_lines:
        for value, number in zip(values, _line_numbers(rows, point_milliseconds), strict=True):
            value["line"] = number
        lines = {"field": "line", "type": "nominal"}
        encoding = {"x": x, "y": y, "color": colour, "detail": lines, "tooltip": tooltip}
        return _vega_specification(values, {"type": "line", "point": True, "strokeWidth": 2}, encoding, 220)
    # Vega-Lite does not stack bars that have a start and an end time, so a transform stacks their heights.
    heap = {"stack": "value", "groupby": ["at"], "sort": [{"field": "of"}], "as": ["low", "high"]}
    heights = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    encoding = {"x": x, "x2": {"field": "to"}, **heights, "color": colour, "tooltip": tooltip}
    return {**_vega_specification(values, {"type": "rect"}, encoding, 220), "transform": [heap]}


def _line_numbers(rows: Sequence[Row], point_milliseconds: int) -> list[int]:
    """Return for each point the number of its line: a new one begins after a time without points of the source."""
    moments: dict[Any, list[datetime]] = {}
    for row in rows:
        moments.setdefault(row["source"], []).append(row["at"])
    numbers: dict[tuple[Any, datetime], int] = {}
    for source, found in moments.items():
        ordered = sorted(found)
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(ordered)]
        usual = max(median(gaps), point_milliseconds / 1000) if gaps else 0.0
        number = 0
        for moment, gap in zip(ordered, [0.0, *gaps], strict=True):
            number += gap > BROKEN_AFTER_POINTS * usual
            numbers[source, moment] = number
    return [numbers[row["source"], row["at"]] for row in rows]


def _conflicts_by_space(rows: Sequence[Row]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[row["space"]] += row["conflicts"]
    return found


def _spaces_with_most(by_space: Counter[str]) -> list[str]:
    return sorted(by_space, key=lambda name: (-by_space[name], name))[:MAX_BARS]


def _unit_of(largest: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """Return the greatest unit in which the largest value is at least 2; else the smallest one."""
    return next((unit for unit in units if largest >= 2 * unit[1]), units[-1])


def _conflicts_by_space_chart(rows: Sequence[Row]) -> Chart:
    values = [
        {"space": r["space"], "pair": winner_over_loser(r), "kind": r["kind"], "value": r["conflicts"]}
        for r in rows
    ]
    by_space = _conflicts_by_space(rows)
    names = _spaces_with_most(by_space)
    shown = [one for one in values if one["space"] in names]
    pairs = len({one["pair"] for one in shown})
    colour = {"field": "pair", "type": "nominal", "title": "winner over loser (replicaset ids)"}
    encoding = {
        "y": {"field": "space", "type": "nominal", "sort": names, "title": None},
        "x": {
            "field": "value",
            "type": "quantitative",
            "title": "conflicts",
            "aggregate": "sum",
            "axis": COUNT_AXIS,
        },
        "tooltip": [
            {"field": "space", "type": "nominal"},
            {"field": "pair", "type": "nominal", "title": "winner over loser"},
            {"field": "value", "type": "quantitative", "title": "conflicts", "aggregate": "sum"},
        ],
        "detail": {"field": "pair", "type": "nominal"},
        **({"color": colour} if pairs <= MAX_COLOURS else {}),
    }
    note = (
        f"The {MAX_BARS} spaces with the most conflicts."
        if len(by_space) > MAX_BARS
        else "All spaces with conflicts."
    )
    if pairs > MAX_COLOURS:
        note += " The table below names the pairs."
    spec = _vega_specification(shown, {"type": "bar"}, encoding, BAR_HEIGHT_PIXELS * len(names) + 10)
    return Chart("conflicts_by_space", "Conflicts by space and pair of replicasets", note, spec)


def _table_sizes_chart(facts: PageFacts) -> Chart:
    filled = [one for one in facts.sizes if one.byte_count]
    shown = filled[:MAX_BARS]
    unit, length = _unit_of(shown[0].byte_count if shown else 0, SIZE_UNITS)
    values = [
        {"table": one.table, "value": one.byte_count / length, "files": one.file_count} for one in shown
    ]
    encoding = {
        "y": {"field": "table", "type": "nominal", "sort": [one.table for one in shown], "title": None},
        "x": {"field": "value", "type": "quantitative", "title": unit},
        "tooltip": [
            {"field": "table", "type": "nominal"},
            {"field": "value", "type": "quantitative", "title": unit, "format": ",.1f"},
            {"field": "files", "type": "quantitative"},
        ],
    }
    which = f"the {MAX_BARS} largest" if len(filled) > MAX_BARS else "all"
    note = f"Data files at the newest epoch; {which} of {len(filled)} tables with rows."
    spec = _vega_specification(values, {"type": "bar"}, encoding, BAR_HEIGHT_PIXELS * len(shown) + 10)
    return Chart("sizes", "Sizes of the tables", note, spec)


def _vega_specification(
    values: Sequence[Any], mark: Mapping[str, Any], encoding: Mapping[str, Any], height: int
) -> dict[str, Any]:
    return {
        "$schema": VEGA_LITE_SCHEMA,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": list(values)},
        "mark": dict(mark),
        "encoding": dict(encoding),
    }


def _iso_time_text(at: datetime, later_milliseconds: int = 0) -> str:
    return (at + timedelta(milliseconds=later_milliseconds)).isoformat()


def _axis_time_format(point_milliseconds: int) -> str:
    if point_milliseconds < 1000:
        return "%H:%M:%S.%L"
    if point_milliseconds < 60_000:
        return "%H:%M:%S"
    return "%m-%d %H:%M" if point_milliseconds < 24 * HOUR_MILLISECONDS else "%Y-%m-%d"


def _natural_sort_key(name: str) -> list[tuple[str, int]]:
    """Return a key by which `s9` comes before `s10`."""
    return [*((text, int(digits or 0)) for text, digits in _TEXT_AND_DIGITS.findall(name)), (name, 0)]
