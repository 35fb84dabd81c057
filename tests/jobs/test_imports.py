"""What commands import before they begin: the time until a light command prints is mostly the time of its imports."""

import json
import subprocess
import sys
from functools import lru_cache

import pytest

HEAVY = {
    "deltalake",
    "great_expectations",
    "llvmlite",
    "numba",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "pyspark",
}

IMPORTED = {
    "jobs.main": set[str](),
    "jobs.cat": set[str](),
    "jobs.who": {"deltalake", "numpy", "pyarrow"},
    # The kernels of logs, whose ends it looks at.
    "jobs.status": {"deltalake", "llvmlite", "numba", "numpy", "pyarrow", "pydantic"},
}
"""The heavy packages that the module of a command may import; `jobs.main` is that of every `--help`."""

PROGRAM = """
import json, os, sys
for module in json.loads(sys.argv[1]):
    if not os.fork():
        __import__(module)
        print(json.dumps([module, sorted({name.partition(".")[0] for name in sys.modules})]), flush=True)
        os._exit(0)
    os.wait()
"""


@lru_cache
def packages_by_module() -> dict[str, set[str]]:
    """Return which packages are imported with each module, each in a process that has imported nothing before."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([*IMPORTED])], capture_output=True, text=True, check=True
    )
    return {module: set(packages) for module, packages in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("module", IMPORTED)
def test_a_light_command_imports_no_more_than_it_needs(module: str) -> None:
    assert packages_by_module()[module] & HEAVY <= IMPORTED[module]
