"""Renders the report page: facts and plots in one HTML file that needs neither a network nor a server.

Jinja2 fills the template and escapes the values from logs, which are untrusted. The browser draws the plots with
Vega-Embed, whose scripts (`vega.js`, made by `setup/page_scripts.py`) are in the page, so neither a CDN nor Node is
needed. A Content-Security-Policy forbids all requests. The data comes from `observe.report.facts`, the plots from
`observe.report.charts`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from observe.log_rows.row_format import escape_unprintable, tuple_text
from observe.report.charts import charts, winner_over_loser
from observe.report.facts import PageFacts, Row
from observe.write_costs import cost_lines
from pipeline.compaction.debt import CompactionDebt
from schemas.states import GapState
from udfs.rid.value import describe_flags

MAX_SHOWN_CHARACTERS = 300
"""Maximum number of characters of a shown value."""

MISSING_VALUE_TEXT = "—"


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
    environment.filters.update(
        moment=time_text,
        number=number_text,
        size=size_text,
        tuple=short_tuple_text,
        part=fields_text,
        seconds=duration_text,
        deleted=deleted_text,
        is_number=is_number_text,
    )
    resources = files("observe.report")
    drawn = {chart.name: chart for chart in charts(facts)}
    return environment.get_template("page.html").render(
        facts=facts,
        ask=facts.rows,
        summary=key_figures(facts),
        cost_lines=[] if facts.costs is None else list(cost_lines(facts.costs)),
        replicasets=replicaset_details(facts),
        collisions=shared_replica_ids(facts),
        spaces=definitions_by_space(facts),
        rid=None if facts.rid is None else facts.rid.node.rid,
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
    waiting = sum(row["rows"] for row in facts.rows("pending"))
    set_aside = sum(row["rows"] for row in facts.rows("quarantine"))
    results = facts.rows("validations")
    failed = sum(not row["holds"] for row in results)
    return (
        ("replicasets", len({row["replicaset_id"] for row in members}), False),
        ("instances", len([row for row in members if row["uuid"] and row["local_id"] is not None]), False),
        ("sources", len({row["source"] for row in facts.rows("sources")}), False),
        ("rows of logs", sum(row["rows"] for row in facts.rows("sources")), False),
        ("conflicts", sum(row["conflicts"] for row in facts.rows("conflicts")), False),
        ("open gaps", gaps, gaps > 0),
        ("quarantined so far", set_aside, _is_true(facts, "rows_set_aside", "misfits")),
        ("waiting", waiting, waiting > 0),
        *([("not as expected", failed, failed > 0)] if results else []),
    )


def _is_true(facts: PageFacts, *conditions: str) -> bool:
    return any(one.condition in conditions for one in facts.problems or ())


def is_number_text(value: object) -> bool:
    """Return whether a cell of a table is a number, which must not be broken."""
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


def size_text(byte_count: float) -> str:
    """Return a number of bytes as text in B, KiB, MiB, GiB or TiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if byte_count < 1024:
            return f"{byte_count:.0f} {unit}" if unit == "B" else f"{byte_count:.1f} {unit}"
        byte_count /= 1024
    return f"{byte_count:.1f} TiB"


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
