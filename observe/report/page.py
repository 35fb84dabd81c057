"""Renders the report page: facts and plots in one HTML file that needs neither a network nor a server.

Jinja2 fills the template and escapes the values from logs, which are untrusted. The browser draws the plots with
Vega-Embed, whose scripts (`vega.js`, made by `setup/page_scripts.py`) are in the page, so neither a CDN nor Node is
needed. A Content-Security-Policy forbids all requests. The data comes from `observe.report.facts`, the plots from
`observe.report.charts`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from observe.log_rows.row_format import escape_unprintable, tuple_text
from observe.report.charts import charts, winner_over_loser
from observe.report.facts import PageFacts, Row
from observe.write_costs import cost_lines
from pipeline.compaction.debt import CompactionDebt
from schemas.conditions import Severity
from schemas.problems import Problem
from schemas.states import GapState
from schemas.units import size_text
from udfs.rid.value import Rid, describe_flags

MAX_SHOWN_CHARACTERS = 300

MISSING_VALUE_TEXT = "—"

SHORT_CELL_CHARACTERS, LONG_CELL_CHARACTERS = 24, 60
"""A cell of at most so many characters is not broken; one of more than so many is a wide column."""

QUERIES_BY_TABLE = ("conflicts", "conflicts_over_time", "conflict_examples", "quarantine")
"""The queries whose column `space` is the name of the space's table."""


@dataclass(frozen=True)
class ProblemGroup:
    """The problems of one condition that have the same advice."""

    condition: str
    severity: Severity
    advice: str
    """Markdown without links."""
    problems: Sequence[Problem]


def render_page(facts: PageFacts) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=PackageLoader("observe.report", ""),
        autoescape=True,
        finalize=_escape_unprintable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    facts = with_space_names(facts)
    environment.filters.update(
        moment=time_text,
        since=since_text,
        code=code_html,
        number=number_text,
        size=size_text,
        tuple=short_tuple_text,
        part=fields_text,
        seconds=duration_text,
        deleted=deleted_text,
        span=range_text,
    )
    resources = files("observe.report")
    drawn = {chart.name: chart for chart in charts(facts)}
    return environment.get_template("page.html").render(
        facts=facts,
        ask=facts.rows,
        summary=key_figures(facts),
        problems=problem_groups(facts.problems or ()),
        cells=table_cells,
        cost_lines=[] if facts.costs is None else list(cost_lines(facts.costs)),
        replicasets=replicaset_details(facts),
        collisions=shared_replica_ids(facts),
        spaces=definitions_by_space(facts),
        rid=None if facts.rid is None else facts.rid.node.rid,
        has_rid=facts.rid is not None and facts.rid.node.rid != Rid(),
        rid_words=None if facts.rid is None else describe_flags(facts.rid.node.rid),
        pair_of=winner_over_loser,
        charts=drawn,
        specs=[
            {"name": one.name, "spec": {**one.spec, "description": f"{one.title}. {one.note}"}}
            for one in drawn.values()
        ],
        style=Markup((resources / "page.css").read_text("utf-8")),
        script=Markup((resources / "page.js").read_text("utf-8")),
        vega=Markup((resources / "vega.js").read_text("utf-8")),
    )


def key_figures(facts: PageFacts) -> Sequence[tuple[str, int, bool]]:
    """Return the key figures of the page, each as (name, number, whether the number needs attention)."""
    members = [row for row in facts.rows("instances") if row["replicaset_id"]]
    gaps = sum(row["state"] == GapState.OPEN for row in facts.rows("gaps"))
    pending = sum(row["rows"] for row in facts.rows("pending"))
    set_aside = sum(row["rows"] for row in facts.rows("quarantine"))
    results = facts.rows("validations")
    failed = sum(not row["holds"] for row in results)
    return (
        ("replicasets", len({row["replicaset_id"] for row in members}), False),
        ("instances", len([row for row in members if row["uuid"] and row["local_id"] is not None]), False),
        ("sources read", len({row["source"] for row in facts.rows("sources")}), False),
        ("rows of logs", sum(row["rows"] for row in facts.rows("sources")), False),
        ("conflicts", sum(row["conflicts"] for row in facts.rows("conflicts")), False),
        ("open gaps", gaps, gaps > 0),
        ("quarantined", set_aside, _is_true(facts, "rows_set_aside", "misfits")),
        ("pending rows", pending, pending > 0),
        *([("not as expected", failed, failed > 0)] if results else []),
    )


def _is_true(facts: PageFacts, *conditions: str) -> bool:
    return any(one.condition in conditions for one in facts.problems or ())


def problem_groups(problems: Iterable[Problem]) -> Sequence[ProblemGroup]:
    """Return problems by condition and advice; those that cannot wait come first."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for one in problems:
        groups.setdefault((one.condition, one.markdown_advice), []).append(one)
    made = [
        ProblemGroup(condition, found[0].severity, advice, found)
        for (condition, advice), found in groups.items()
    ]
    return sorted(made, key=lambda group: group.severity is not Severity.PAGE)


def with_space_names(facts: PageFacts) -> PageFacts:
    """Return facts with names of spaces in place of names of tables, such as `my-space` of `my_space__x2_2d`."""
    names = {row["table_name"]: row["name"] for row in facts.rows("spaces") if row["table_name"]}
    named = {
        query: tuple({**row, "space": names.get(row["space"], row["space"])} for row in facts.rows(query))
        for query in QUERIES_BY_TABLE
        if query in facts.rows_by_query
    }
    return replace(facts, rows_by_query={**facts.rows_by_query, **named})


def table_cells(
    heads: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[list[tuple[str, str]], list[list[tuple[Any, str]]]]:
    """Return the heads and rows of a table, each cell with its class in CSS; columns without a value are left out."""
    shown = [
        number
        for number in range(len(heads))
        if not rows or any(row[number] not in (None, MISSING_VALUE_TEXT) for row in rows)
    ]
    numeric = {number for number in shown if rows and all(_is_number(row[number]) for row in rows)}
    return (
        [(heads[number], "number" if number in numeric else "") for number in shown],
        [
            [
                (MISSING_VALUE_TEXT if row[number] is None else row[number], _cell_class(row[number]))
                for number in shown
            ]
            for row in rows
        ],
    )


def _cell_class(value: Any) -> str:
    if _is_number(value):
        return "number"
    length = len(str(value))
    return "short" if length <= SHORT_CELL_CHARACTERS else "long" if length > LONG_CELL_CHARACTERS else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.replace(",", "").isdigit())


def replicaset_details(facts: PageFacts) -> Sequence[Mapping[str, Any]]:
    """Return for each replicaset its id, uuid, sources, instances, and rows of its applier map (`maps`).

    Of the applier map, only rows of an id that changed its owner, or that are valid in one source only.
    """
    by_id: dict[int, dict[str, Any]] = {}
    for row in facts.rows("instances"):
        if not row["replicaset_id"]:  # the aggregator itself
            continue
        empty = {
            "id": row["replicaset_id"],
            "uuid": row["replicaset_uuid"],
            "instances": [],
            "subscribers": [],
            "sources": [],
            "maps": [],
        }
        replicaset = by_id.setdefault(row["replicaset_id"], empty)
        if row["uuid"]:
            # A daemon that wrote a spool is in its headers, and has no replica id.
            replicaset["instances" if row["local_id"] is not None else "subscribers"].append(row)
    for row in facts.rows("sources"):
        if row["replicaset_id"] in by_id:
            by_id[row["replicaset_id"]]["sources"].append(row["source"])
    for replicaset in by_id.values():
        maps = [row for row in facts.rows("applier_map") if row["replicaset_id"] == replicaset["id"]]
        ids = [row["local_id"] for row in maps]
        replicaset["maps"] = [row for row in maps if row["source"] or ids.count(row["local_id"]) > 1]
    return [by_id[id_] for id_ in sorted(by_id)]


def shared_replica_ids(facts: PageFacts) -> Sequence[tuple[int, int]]:
    """Return (replica id, number of instances) of each replica id that several instances of all replicasets have."""
    count: dict[int, int] = {}
    for row in facts.rows("instances"):
        if row["replicaset_id"] and row["uuid"] and row["local_id"] is not None:
            count[row["local_id"]] = count.get(row["local_id"], 0) + 1
    return sorted((local, many) for local, many in count.items() if many > 1)


def definitions_by_space(facts: PageFacts) -> Sequence[tuple[str, Sequence[Row]]]:
    """Return (name, definitions) of each space; the definitions are rows of the query `spaces`, the oldest first."""
    found: dict[str, list[Row]] = {}
    for row in facts.rows("spaces"):
        found.setdefault(row["name"], []).append(row)
    return list(found.items())


def deleted_text(debt: CompactionDebt | None) -> str:
    """Return which share of a table's rows is deleted by deletion vectors."""
    return MISSING_VALUE_TEXT if debt is None else f"{debt.deleted_share:.1%}"


def time_text(value: datetime | None) -> str:
    """Return a time as text, without fractions of a second."""
    return MISSING_VALUE_TEXT if value is None else value.strftime("%Y-%m-%d %H:%M:%S")


def since_text(seconds: float) -> str:
    """Return a time, given in seconds since 1970, as text."""
    return time_text(datetime.fromtimestamp(seconds, UTC))


def range_text(first: int, last: int) -> str:
    """Return a range of numbers as text, such as `5 to 7`."""
    return number_text(first) if first == last else f"{number_text(first)} to {number_text(last)}"


def code_html(markdown: str) -> Markup:
    """Return text as HTML, with what is between backticks as code."""
    parts = enumerate(escape_unprintable(markdown).split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else escape(p) for n, p in parts)


def number_text(value: float | None) -> str:
    """Return a number as text, with commas between thousands."""
    return MISSING_VALUE_TEXT if value is None else f"{value:,}"


def duration_text(seconds: float | None) -> str:
    """Return a duration, given in seconds, as text in days, hours, minutes or seconds."""
    if seconds is None:
        return MISSING_VALUE_TEXT
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def short_tuple_text(data: bytes | None) -> str:
    """Return MessagePack as text, shortened if it is long."""
    text = MISSING_VALUE_TEXT if data is None else tuple_text(bytes(data))
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"


def _escape_unprintable(value: Any) -> Any:
    return escape_unprintable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def fields_text(fields_json: str | None) -> str:
    """Return a space's format or primary key, which `_schema` has as JSON, as text: `id unsigned, name string`."""
    parts = json.loads(fields_json or "[]")
    return ", ".join(_field_text(part) for part in parts) or MISSING_VALUE_TEXT


def _field_text(part: Mapping[str, Any]) -> str:
    name = part.get("name")
    shown = f"#{part['field'] + 1}" if name is None and isinstance(part.get("field"), int) else str(name)
    kind = part.get("type")
    nullable = "?" if part.get("is_nullable") or part.get("nullable") else ""
    return f"{shown} {kind}{nullable}" if kind else shown
