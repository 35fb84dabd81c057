"""Runs all live tests with each of the given servers, and writes a page of the results by version.

    python -m tests.live.matrix SERVER [SERVER ...] [--out docs/live-tests.md] [-k NAME]

In each run another server is the default of the tests; tests that connect servers of several versions find all of them.
Exits with 1 if a test failed.
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.live.server import version_of

ROOT = Path(__file__).resolve().parents[2]
HEAD = """# Live tests, version by version

`make live-matrix SERVERS="PATH PATH …"` runs all tests that need a real Tarantool once with each server, and writes
this page. In each run the server of the column is the one that a test takes by itself; tests that connect several
versions (daemon, relay and subscribers of different versions, upgrades, histories) find all of them in every run. A
number is the number of tests that passed. Tests that take many minutes are no part of it: `make soak`.
"""


@dataclass(frozen=True)
class Outcome:
    """The result of one test."""

    module: str
    name: str
    """The test's file and name: `tests/jobs/test_node.py`, `test_a_subscriber[2.11]`."""
    result: str
    """`passed`, `skipped` or `failed`."""
    reason: str
    """Why it was skipped or failed; empty for a test that passed."""


def outcomes(report: Path) -> list[Outcome]:
    """Return the result of each test in a JUnit report."""
    found = []
    for case in ET.parse(report).iter("testcase"):
        result, reason = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                result, reason = "failed", child.get("message", "")
            elif child.tag == "skipped":
                result, reason = "skipped", child.get("message", "")
        found.append(Outcome(module_of(case.get("classname", "")), case.get("name", ""), result, reason))
    return found


def module_of(class_name: str) -> str:
    """Return the file of a test from the dotted name of its module or class."""
    parts = class_name.split(".")
    while parts and not (ROOT / Path(*parts)).with_suffix(".py").exists():
        parts.pop()
    return str(Path(*parts).with_suffix(".py"))


def run(server: str, others: Sequence[str], folder: Path, name: str | None) -> list[Outcome]:
    """Run the live tests whose names match `name`, with `server` as their default, and return their results."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-n", "auto", "-m", "live and not soak", "-q"]
    command.append(f"--junitxml={report}")
    if name is not None:
        command += ["-k", name]
    environment = {**os.environ, "TARANTOOL": ":".join([server, *others])}
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if code not in (0, 1):
        raise SystemExit(f"pytest ended with {code}")
    return outcomes(report)


def page(by_version: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the page: counts by file and version, then how many failed or were skipped, and why."""
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for version, tests in by_version.items():
        for test in tests:
            counts[test.module][version][test.result] += 1
    head = f"| tests | what they show | {' | '.join(by_version)} |"
    lines = [HEAD, head, "|---|---|" + "---|" * len(by_version)]
    for module in sorted(counts):
        cells = " | ".join(counts_text(counts[module][version]) for version in by_version)
        lines.append(f"| `{module}` | {purpose(module)} | {cells} |")
    sums = (Counter(test.result for test in tests) for tests in by_version.values())
    lines.append(f"| all | | {' | '.join(map(counts_text, sums))} |")
    for result in ("failed", "skipped"):
        alike: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for version, tests in by_version.items():
            for test in tests:
                if test.result == result:
                    alike[test.module, first_line(test.reason)[:200]][version] += 1
        if alike:
            head = f"| tests | reason | {' | '.join(by_version)} |"
            lines += ["", f"## {result.capitalize()}", "", head, "|---|---|" + "---|" * len(by_version)]
        for (module, reason), numbers in sorted(alike.items()):
            cells = " | ".join(str(numbers[version] or "") for version in by_version)
            lines.append(f"| `{module}` | {reason} | {cells} |")
    return "\n".join(lines) + "\n"


def first_line(text: str) -> str:
    """Return the first line of a text, escaped for a cell of a Markdown table."""
    return text.partition("\n")[0].replace("|", "\\|")


def counts_text(counts: Counter[str]) -> str:
    """Return the numbers of passed, skipped and failed tests as text: `12, 1 skipped`."""
    others = [f"{counts[result]} {result}" for result in ("skipped", "failed") if counts[result]]
    return ", ".join([str(counts["passed"]), *others])


def purpose(module: str) -> str:
    """Return the first line of a module's docstring."""
    return first_line(ast.get_docstring(ast.parse((ROOT / module).read_text("utf-8"))) or "")


def main() -> int:
    """Run the tests with each server, and write the page."""
    parser = argparse.ArgumentParser(description="Run every live test with each given server.")
    parser.add_argument("servers", nargs="+", metavar="SERVER", help="path of a server's program")
    parser.add_argument("--out", type=Path, help="the page to write; standard output without it")
    parser.add_argument("-k", dest="name", help="only tests with this in their names")
    options = parser.parse_args()
    by_version: dict[str, list[Outcome]] = {}
    for server in options.servers:
        others = [one for one in options.servers if one != server]
        with tempfile.TemporaryDirectory() as folder:
            by_version[version_of(server)] = run(server, others, Path(folder), options.name)
    text = page(by_version)
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, "utf-8")
    return 1 if any(test.result == "failed" for tests in by_version.values() for test in tests) else 0


if __name__ == "__main__":
    sys.exit(main())
