"""Aggregate what is there, validate the tables and show them: three commands one after another, in one Spark session.

    spark-submit jobs/demo.py --config FILE [--page FILE]

The same as `jobs/aggregate.py --once`, `jobs/validate.py` and `jobs/report.py`, without starting Spark three times.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from importlib import import_module

from config.deployment import Config
from jobs.aggregate import aggregate
from jobs.cli import parser, run
from jobs.report import PAGE, report
from jobs.validate import validate


def demo(config: Config, options: argparse.Namespace) -> int:
    """Run the three commands, say what each took, and return the exit code of the validation."""
    # Great Expectations takes seconds to import: here while Java starts.
    threading.Thread(target=import_module, args=("great_expectations.expectations",), daemon=True).start()
    began = time.monotonic()
    aggregate(config, argparse.Namespace(once=True))
    aggregated = time.monotonic()
    code = validate(config, argparse.Namespace(config=options.config, space=None, docs=None))
    validated = time.monotonic()
    report(config, argparse.Namespace(page=options.page))
    took = (aggregated - began, validated - aggregated, time.monotonic() - validated)
    print("aggregated in {:.1f} s, validated in {:.1f} s, shown in {:.1f} s".format(*took))
    return code


def main() -> int:
    """Run the command."""
    arguments = parser((__doc__ or "").partition("\n")[0])
    arguments.add_argument("--page", default=PAGE, metavar="FILE", help=f"the page; default: {PAGE}")
    return run(demo, arguments)


if __name__ == "__main__":
    sys.exit(main())
