"""Aggregate all current rows, validate the tables and show them: three commands in one Spark session.

The same as `jobs/aggregate.py --once`, `jobs/validate.py` and `jobs/report.py`, without starting Spark three times.
"""

import sys
import time

from config.deployment import Config
from jobs.aggregate import aggregate
from jobs.main import main
from jobs.report import DEFAULT_PAGE, report
from jobs.runtime.output import say
from jobs.validate import validate
from observe.validation.validator import import_library


def demo(config: Config, file: str, page: str = DEFAULT_PAGE) -> int:
    """Run the three commands, print their times, and return the exit code of the validation."""
    import_library()  # takes seconds: done while Java starts
    began = time.monotonic()
    aggregate(config, once=True)
    aggregated = time.monotonic()
    code = validate(config, file)
    validated = time.monotonic()
    report(config, page)
    took = (aggregated - began, validated - aggregated, time.monotonic() - validated)
    say("aggregated in {:.1f} s, validated in {:.1f} s, shown in {:.1f} s".format(*took))
    return code


if __name__ == "__main__":
    sys.exit(main("demo"))
