"""Run the benchmarks one after the other: `python -m benchmarks [decode] [typed] [pipeline] [live]`, by default all."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

NAMES = ("decode", "typed", "pipeline", "live")


def main() -> int:
    """Run what is named, each in a process of its own; return 1 if one fails."""
    folder = Path(__file__).parent
    known = [name for name in NAMES if (folder / f"{name}.py").is_file()]
    wanted = sys.argv[1:] or known
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        print(f"error: no benchmark is called {unknown[0]}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    print(f"{platform.platform()}, Python {platform.python_version()}")
    codes = [
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
        for name in wanted
    ]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
