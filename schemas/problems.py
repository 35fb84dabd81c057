"""Problems: conditions of `schemas.conditions` that are true now, each of one subject. Plain data."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from schemas.conditions import CONDITIONS, Job, Severity

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
_LINK_IN_BRACKETS = re.compile(r" \(\[[^]]*\]\([^)]*\)\)")


@dataclass(frozen=True)
class Problem:
    """A condition that is true now."""

    condition: str
    subject: str
    """What it is about: `source a1`, `replicaset a`, `peer 10.0.0.1:3301`, `table accounts`."""
    text: str
    """What was found, in one sentence."""
    since: float | None = None
    """Seconds since 1970; None if unknown."""
    advice: str = ""
    """What to do; empty: what the condition says."""

    @property
    def severity(self) -> Severity:
        """How soon somebody must look."""
        return CONDITIONS[self.condition].severity

    @property
    def markdown_advice(self) -> str:
        """What to do, in Markdown without the links of the documents."""
        return self.advice or _without_links(CONDITIONS[self.condition].advice)

    @property
    def shown_advice(self) -> str:
        """What to do, for a terminal."""
        return self.advice or plain_text(CONDITIONS[self.condition].advice)


def problem(name: str, subject: str, text: str, *, since: float | None = None, advice: str = "") -> Problem:
    """Return a problem; its condition must be in the list."""
    return Problem(CONDITIONS[name].name, subject, text, since, advice)


def plain_text(markdown: str) -> str:
    """Return a markdown sentence for a terminal: without marks of code and targets of links."""
    return _without_links(markdown).replace("`", "")


def _without_links(markdown: str) -> str:
    return _LINK.sub(r"\1", _LINK_IN_BRACKETS.sub("", markdown))


def sorted_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems in the order of the list, each (condition, subject) once."""
    order = list(CONDITIONS)
    first: dict[tuple[str, str], Problem] = {}
    for one in problems:
        first.setdefault((one.condition, one.subject), one)
    return sorted(first.values(), key=lambda one: (order.index(one.condition), one.subject))


def problem_text(one: Problem) -> str:
    """Return a problem as one line: what it is about, what was found, and the name of the condition."""
    since = ""
    if one.since is not None:
        since = f", since {datetime.fromtimestamp(one.since, UTC).isoformat(timespec='seconds')}"
    return f"{one.subject}: {one.text} [{one.condition}, {one.severity}{since}]"


def problem_as_json(one: Problem) -> dict[str, Any]:
    """Return a problem as a JSON object."""
    since = (
        None if one.since is None else datetime.fromtimestamp(one.since, UTC).isoformat(timespec="seconds")
    )
    return {
        "condition": one.condition,
        "severity": str(one.severity),
        "subject": one.subject,
        "text": one.text,
        "since": since,
        "advice": one.shown_advice,
    }


def problem_from_json(data: Mapping[str, Any]) -> Problem | None:
    """Return the problem in a JSON object of a status page; None if its condition is not in the list."""
    if data.get("condition") not in CONDITIONS:
        return None
    since = data.get("since")
    return Problem(
        str(data["condition"]),
        str(data.get("subject")),
        str(data.get("text")),
        None if since is None else datetime.fromisoformat(str(since)).timestamp(),
        str(data.get("advice") or ""),
    )


def condition_metric(job: Job, problems: Iterable[Problem]) -> GaugeMetricFamily:
    """Return the metric `<job>_condition`, which is 1 for each problem."""
    metric = GaugeMetricFamily(
        f"{job}_condition", "1 for each condition that needs attention", labels=["condition", "subject"]
    )
    for one in sorted_problems(problems):
        metric.add_metric([one.condition, one.subject], 1)
    return metric
