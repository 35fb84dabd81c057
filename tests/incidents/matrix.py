"""Causes each incident with each of the given servers, and writes the page of what was told, and after how long.

    python -m tests.incidents.matrix SERVER [SERVER ...] [--out docs/incidents.md] [--records FOLDER] [-k NAMES]

With `--records`, what earlier runs with this folder have seen is kept, so that the incidents can be caused in parts.
Exits with 1 if an incident did not show in time and alike everywhere, or was not gone after it was mended.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.incidents.deployment import ANSWER_SECONDS, STALE_SECONDS
from tests.incidents.incidents import BATCH_SECONDS, COMPARE_SECONDS, INCIDENTS, SLACK_SECONDS
from tests.live.server import version_of

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/incidents/test_incidents.py"
HEAD = f"""# Incidents: where each one shows, and when

`make incidents SERVERS="PATH PATH …"` causes each of these on real servers, with a daemon and a stream, and writes this
page. An incident has the same names everywhere: in `aggregator status` (its exit code is then 1) and `aggregator
doctor`, on the first screen of `aggregator report`, in `/status` and `<job>_condition` of the job, and in the alert,
which fires its `for` later ([conditions](reference/conditions.md)). The others name a job that does not answer, and so
does `up`.

Each cell has two times in seconds: until the incident shows / until it is gone after it was mended (with a start of
Spark where the stream is started again). If the incident ends the job, the first time begins at the job's end. Its
limit is twice the `setting`, and {SLACK_SECONDS:.0f} s more for a busy machine; servers that are cut off take two
`answer`, since the silent stream is followed by one of another peer. In these runs `answer` and `patience`
are {ANSWER_SECONDS:.0f} s, `metrics.stale` is {STALE_SECONDS:.0f} s, `trigger` and the look that follows it
{BATCH_SECONDS:.0f} s, and a look a minute is one in {COMPARE_SECONDS:.0f} s. Commands wait 3 s for the answer of a
stopped job. An empty cell means that the test of the incident failed. A lost lease and compaction debt are made in
`tests/incidents/test_tables.py`.
"""

Records = Mapping[str, Mapping[str, Any]]


def run(server: str, folder: Path, name: str | None) -> tuple[Records, bool]:
    """Cause the incidents with a server; return what was recorded, and whether all tests passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "soak", TESTS]
    command += [] if name is None else ["-k", name]
    environment = {**os.environ, "TARANTOOL": server, "INCIDENTS": str(folder), "SOAK": "1"}
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    file = folder / f"{version_of(server).partition('-')[0]}.json"
    return (json.loads(file.read_text()) if file.exists() else {}), code == 0


def page(by_version: Mapping[str, Records]) -> str:
    """Return the page: a line for each incident, with the seconds by version."""
    lines = [HEAD, f"| incident | condition | setting | {' | '.join(by_version)} |"]
    lines.append("|---|---|---|" + "---|" * len(by_version))
    for one in INCIDENTS:
        told = ", ".join(f"`{name}`" for name in sorted(one.conditions))
        cells = [seconds_text(records.get(one.name)) for records in by_version.values()]
        lines.append(f"| {one.name} | {told} | {one.setting} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def seconds_text(record: Mapping[str, Any] | None) -> str:
    """Return the seconds of an incident: `2.1 / 0.8`; empty if it was not caused, or its test failed."""
    return "" if record is None else f"{record['seen']} / {record['over']}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Cause the incidents with each server, and write the page."""
    parser = argparse.ArgumentParser(description="Cause every incident with each given server.")
    parser.add_argument("servers", nargs="+", metavar="SERVER", help="path of a server's program")
    parser.add_argument("--out", type=Path, help="the page to write; standard output without it")
    parser.add_argument("-k", dest="name", help="only incidents with this in their functions' names")
    parser.add_argument("--records", type=Path, help="a folder for what was seen, to be continued")
    options = parser.parse_args(arguments)
    by_version: dict[str, Records] = {}
    are_all_passed = True
    for server in options.servers:
        with tempfile.TemporaryDirectory() as folder:
            records, is_passed = run(server, options.records or Path(folder), options.name)
        by_version[version_of(server).partition("-")[0]] = records
        are_all_passed = are_all_passed and is_passed
    text = page(by_version)
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, "utf-8")
    return 0 if are_all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
