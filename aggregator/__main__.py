"""Run the command: `python -m aggregator`, and the console script `aggregator`."""

from __future__ import annotations

import sys

from jobs.main import main

if __name__ == "__main__":
    sys.exit(main())
