"""Fuzz everything that reads bytes of others, and print the counts by kind.

    python -m tests.fuzz [--cases N] [--seed S] [--kind KIND ...] [--seconds T] [--workers W]

A failure is printed with its seed; `--kind KIND --seed SEED --cases 1` does that case again. Exits with 1 where any
case failed.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz.run import fuzz, table
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Run, as the module says."""
    parser = argparse.ArgumentParser(description="Fuzz everything that reads bytes of others.")
    parser.add_argument("--cases", type=int, default=20_000, help="cases of all kinds together")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case of each kind")
    parser.add_argument("--kind", action="append", choices=sorted(TARGETS), help="only these kinds")
    parser.add_argument("--seconds", type=float, default=1e9, help="so long at most for each kind")
    parser.add_argument("--workers", type=int, default=2, help="kinds at a time")
    given = parser.parse_args()
    kinds = given.kind or list(TARGETS)
    each = max(1, given.cases // len(kinds))
    with ThreadPoolExecutor(given.workers) as pool:
        parts = pool.map(lambda kind: fuzz([kind], given.seed, each, given.seconds), kinds)
        reports = [report for part in parts for report in part]
    print(table(reports))
    for report in reports:
        seen: set[str] = set()
        for seed, reason in report.failures:
            cause = reason.partition(":")[0] if reason.startswith("exit") else reason[:60]
            if cause not in seen:
                print(f"{report.kind} {seed}: {reason}")
            seen.add(cause)
    return 1 if any(report.failures for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
