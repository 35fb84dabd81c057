"""Machine code is cached by the digest of all its sources: after an upgrade no old code runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from schemas import compiled

ROOT = Path(__file__).resolve().parents[2]
KERNEL = "sources.xlog.format.kernels.fill"


def digest(folder: Path) -> str:
    command = [
        sys.executable,
        "-c",
        f"from schemas.compiled import digest_of; print(digest_of({KERNEL!r}).hex())",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    completed = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return completed.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for room in ("schemas", "sources"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("sources/xlog/format/kernels/fill.py", True),
        ("sources/xlog/format/kernels/row.py", True),
        ("sources/xlog/format/kernels/native.py", True),
        ("schemas/iproto.py", True),
        ("sources/xlog/directory/listing.py", False),
    ],
)
def test_a_change_of_an_imported_source_changes_the_digest(copy: Path, file: str, counts: bool) -> None:
    before = digest(copy)
    with (copy / file).open("a") as source:
        source.write("\n# changed\n")
    assert (digest(copy) != before) == counts


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from udfs.keys.keys import (\n    a,\n    b as c,\n)\n", {"udfs.keys.keys", "udfs.keys.keys.b"}),
        ("def f():\n    from udfs import buffers\n", {"udfs", "udfs.buffers"}),
        ("import os, sources.spool as spool\n", {"sources.spool"}),
        ("import numpy\nfrom udfsx import y\nx = 1  # from udfs import z\n", set()),
    ],
)
def test_imports_are_found_in_a_text(source: str, expected: set[str]) -> None:
    found = set(compiled._modules_named_in(source.encode()))
    assert expected <= found
    assert bool(found) == bool(expected)


TWICE = """
from schemas.compiled import entry, is_cached


@entry
def twice(value):
    return 2 * value


was_cached = is_cached(twice)
print(twice(21), sum(twice.stats.cache_hits.values()), was_cached, is_cached(twice))
"""


def test_cached_code_that_cannot_be_read_is_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(TWICE)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", "import doubled"]

    def run() -> str:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert run() == "42 0 False True"
    (index,) = (tmp_path / "__pycache__").glob("*.nbi")
    whole = index.read_bytes()
    # The index begins with Numba's version, by itself; what follows names classes.
    index.write_bytes(whole[: whole.index(b".") + 1] + b"\x80\x04cnowhere\nNumber\n.")
    assert run() == "42 0 False True"
    (code,) = (tmp_path / "__pycache__").glob("*.nbc")
    code.write_bytes(b"")
    assert run() == "42 0 True True"
    assert run() == "42 1 True True"
