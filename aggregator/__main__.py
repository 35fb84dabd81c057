"""Run the command: `python -m aggregator`, and the console script `aggregator`."""

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]

if (PROJECT / "jobs").is_dir() and {"", str(Path.cwd())} & {*sys.path[:1]} and Path.cwd() != PROJECT:
    # In the repository the other packages are beside this one. `python -m` puts the current folder first, where
    # modules of the same names may be a user's: his are found after those of the project.
    sys.path.append(sys.path.pop(0))
    sys.path.insert(0, str(PROJECT))

from jobs.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
