"""Writes Prometheus' alerts, and the table of conditions in the documents, from the list of conditions.

    python -m observe.alert_rules

A test compares both files with the list (`schemas.conditions`).
"""

from __future__ import annotations

from pathlib import Path

from schemas.conditions import CONDITIONS, Condition, Job

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "conf" / "prometheus" / "alerts.yaml"
PAGE = ROOT / "docs" / "alerts.md"

TABLE_HEAD = "| condition, alert | severity | means | found by | what to do |\n|---|---|---|---|---|\n"

_HEAD = """\
# Alerts on the metrics of the stream, the daemon, the relay and the node; written by `python -m observe.alert_rules`
# from the list of conditions (schemas/conditions.py). What each means, and what to do, is in docs/alerts.md:
# `runbook_url` names the entry, relative to the project's folder.
#   page: data is late or incomplete now, and does not mend itself     ticket: look at it in working hours
groups:
"""
_GROUPS = {Job.STREAM: "stream", Job.DAEMON: "daemon", Job.RELAY: "relay", Job.NODE: "node"}


def rules_text() -> str:
    """Return the file of Prometheus' alerts."""
    groups = []
    for job, group in _GROUPS.items():
        rules = "".join(_rule(one) for one in CONDITIONS.values() if one.job is job)
        groups.append(f"  - name: {group}\n    rules:\n{rules}")
    return _HEAD + "".join(groups)


def _rule(condition: Condition) -> str:
    wait = f"        for: {condition.wait}\n" if condition.wait else ""
    return (
        f"      - alert: {condition.alert}\n"
        f"        expr: {_quoted(condition.alert_expr)}\n"
        f"{wait}"
        f"        labels: {{severity: {condition.severity}}}\n"
        "        annotations:\n"
        f"          summary: {_quoted(condition.summary)}\n"
        f"          runbook_url: docs/alerts.md#alert-{condition.alert.lower()}\n"
    )


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def documents_table() -> str:
    """Return the table of all conditions, in Markdown."""
    return TABLE_HEAD + "".join(
        f'| <a id="alert-{one.alert.lower()}"></a>`{one.name}`, `{one.alert}` | {one.severity} | {one.means} '
        f"| {one.found}{'; only by Prometheus' if one.is_alert_only else ''} | {one.advice} |\n"
        for one in CONDITIONS.values()
    )


def page_with_table(page: str) -> str:
    """Return a page whose table of conditions is the one of the list."""
    begin = page.index(TABLE_HEAD)
    end = page.index("\n\n", begin) + 1
    return page[:begin] + documents_table() + page[end:]


if __name__ == "__main__":
    RULES.write_text(rules_text(), encoding="utf-8")
    PAGE.write_text(page_with_table(PAGE.read_text("utf-8")), encoding="utf-8")
