"""Some seconds of fuzzing, the same in each run (`make fuzz` does more), and that the harness sees what it must."""

import os
import subprocess
import sys

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.targets import TARGETS
from tests.soaked import examples

CASES = examples(60)
"""Of each kind."""


@pytest.mark.parametrize("part", range(2))
def test_nothing_but_our_errors_comes_of_any_bytes(part: int) -> None:
    kinds = list(TARGETS)[part::2]
    reports = fuzz(kinds, 0, CASES)
    assert {one.kind: one.failures for one in reports if one.failures} == {}
    assert {one.kind: one.counts.total() for one in reports} == dict.fromkeys(kinds, CASES)
    assert all(one.counts["accepted"] for one in reports), (
        "a kind of which nothing is ever accepted tests little"
    )


@pytest.mark.parametrize(
    ("code", "signal"),
    [
        ("a = guarded(100); a[0] = a[99] = 1", 0),
        ("a = guarded(100); ctypes.memset(a.ctypes.data + 100, 0, 1)", -11),
        ("a = guarded(4096); ctypes.memset(a.ctypes.data - 1, 0, 1)", -11),
        ("a = guarded(0)", 0),
    ],
)
def test_one_byte_outside_of_a_guarded_array_ends_the_process(code: str, signal: int) -> None:
    code = f"import ctypes; from tests.fuzz.guard import guarded; {code}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), check=False, capture_output=True
    )
    assert done.returncode == signal, done.stderr.decode()[-500:]
