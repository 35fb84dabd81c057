"""Cases of many kinds in processes of their own, and what became of them."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Report:
    """What became of the cases of one kind."""

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    """accepted, refused, failed; crashed for cases that ended their process."""
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Seed and reason of each case that failed or ended its process."""


def fuzz(kinds: Sequence[str], seed: int, count: int, seconds: float = 1e9) -> list[Report]:
    """Do cases of each kind, from a seed on, as many as the time allows; a worker that ends is replaced.

    Args:
        seed, count: Of the first case of each kind, and how many there are.
    """
    reports = {kind: Report(kind) for kind in kinds}
    begin, end, until = 0, count * len(kinds), time.monotonic() + seconds
    while begin < end and time.monotonic() < until:
        command = [sys.executable, "-m", "tests.fuzz.worker", ",".join(kinds), str(seed)]
        command += [str(begin), str(end), str(until - time.monotonic())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        last, finished = begin - 1, False
        for line in done.stdout.splitlines():
            if line.startswith("? "):
                last = int(line[2:])
            elif line.startswith("! "):
                number, _, reason = line[2:].partition(" ")
                kind = kinds[int(number) % len(kinds)]
                own = seed + int(number) // len(kinds)
                reports[kind].failures.append((own, json.loads(reason)))
            elif line.startswith("= "):
                finished = True
                for kind, counts in json.loads(line[2:]).items():
                    reports[kind].counts.update(counts)
        if finished:
            break
        if last < begin:
            raise RuntimeError(f"a worker did not start: {done.stderr[-2000:]}")
        kind, own = kinds[last % len(kinds)], seed + last // len(kinds)
        where = next((one.strip() for one in done.stderr.splitlines() if one.strip().startswith("File")), "")
        reports[kind].failures.append((own, f"exit {done.returncode} {where}"))
        reports[kind].counts["crashed"] += 1
        for earlier in range(begin, last):
            reports[kinds[earlier % len(kinds)]].counts["done before a crash"] += 1
        begin = last + 1
    return list(reports.values())


def table(reports: Iterable[Report]) -> str:
    """Return the counts by kind as text."""
    lines = [f"{'kind':<14}{'cases':>10}{'accepted':>10}{'refused':>10}{'failed':>8}{'crashed':>9}"]
    total: Counter[str] = Counter()
    for report in reports:
        lines.append(_line(report.kind, report.counts))
        total.update(report.counts)
    return "\n".join([*lines, _line("all", total)])


def _line(name: str, counts: Counter[str]) -> str:
    own = (counts["accepted"], counts["refused"], counts["failed"], counts["crashed"])
    return f"{name:<14}{counts.total():>10}{own[0]:>10}{own[1]:>10}{own[2]:>8}{own[3]:>9}"
