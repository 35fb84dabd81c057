"""The findings of `aggregator doctor`, each with a level, a stable name and advice, and their output. No I/O."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

STORES = "docs/stores.md"
"""The page on conditional writes."""


class Level(StrEnum):
    """Severity of a finding. `fail`: a run would stop or have a wrong result; `warn`: a run works, at least for now."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The result of one check: one line of the output."""

    level: Level
    name: str
    """Stable name, such as `log_gap`; docs/reference/names.md lists all names."""
    subject: str
    """The checked thing: `java`, `source a1`, `peer 10.0.0.1:3301`, `table accounts`."""
    text: str
    advice: str | None = None
    """What the operator should do; None without a problem."""


def ok(name: str, subject: str, text: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(Level.OK, name, subject, text)


def warn(name: str, subject: str, text: str, advice: str) -> Finding:
    """Return a finding that does not stop a run."""
    return Finding(Level.WARN, name, subject, text, advice)


def fail(name: str, subject: str, text: str, advice: str) -> Finding:
    """Return a finding that stops a run or makes its result wrong."""
    return Finding(Level.FAIL, name, subject, text, advice)


def count_by_level(findings: Iterable[Finding]) -> dict[Level, int]:
    """Return the number of findings of each level."""
    counts = dict.fromkeys(Level, 0)
    for finding in findings:
        counts[finding.level] += 1
    return counts


def format_findings(findings: Sequence[Finding]) -> Iterator[tuple[Level, str]]:
    """Yield for each finding its level and its line of the output."""
    width = max((len(finding.subject) for finding in findings), default=0)
    for finding in findings:
        name = "" if finding.level is Level.OK else f" [{finding.name}]"
        advice = "" if finding.advice is None else f" → {finding.advice}"
        yield finding.level, f"{finding.level:<4}  {finding.subject:<{width}}  {finding.text}{name}{advice}"


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as a JSON object."""
    totals = {str(level): count for level, count in count_by_level(findings).items()}
    return {"findings": [asdict(one) for one in findings], "totals": totals}
