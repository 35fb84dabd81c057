"""Writes Prometheus' alerts from the list of conditions.

    python -m observe.alert_rules

A test compares the file with the list (`schemas.conditions`); `make reference` writes its page in the documents.
"""

from pathlib import Path

from schemas.conditions import CONDITIONS, Condition, Job

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "conf" / "prometheus" / "alerts.yaml"

_HEAD = """\
# Alerts on the metrics of the stream, the daemon, the relay and the node; written by `python -m observe.alert_rules`
# from the list of conditions (schemas/conditions.py). docs/reference/conditions.md says what each means and what to do:
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
        f"          runbook_url: docs/reference/conditions.md#alert-{condition.alert.lower()}\n"
    )


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


if __name__ == "__main__":
    RULES.write_text(rules_text(), encoding="utf-8")
