"""`aggregator run` loads Arrow with an allocator that keeps memory; Spark's processes do not inherit that."""

import subprocess
import sys

import pytest

PROGRAM = """
import os
from jobs.commands.run import PURGE_DELAY, load_arrow_that_keeps_memory
import sys
assert "pyarrow" not in sys.modules
seen = []
import importlib
load = importlib.import_module
importlib.import_module = lambda name: (seen.append((name, os.environ.get(PURGE_DELAY))), load(name))
load_arrow_that_keeps_memory()
load_arrow_that_keeps_memory()
print(seen, os.environ.get(PURGE_DELAY), "pyarrow" in sys.modules)
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, "[('pyarrow', '-1')] None True"), ("5", "[] 5 False")],
)
def test_arrow_is_loaded_with_the_setting_and_nothing_inherits_it(given: str | None, expected: str) -> None:
    code = (
        PROGRAM if given is None else f"import os\nos.environ['MIMALLOC_PURGE_DELAY'] = '{given}'\n" + PROGRAM
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
