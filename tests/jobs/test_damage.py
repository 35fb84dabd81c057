"""Damaged logs through the job: an error with file, offset and reason, an exit code, and no partial batch."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.main import main
from jobs.runtime.command_line import FAILED
from tests.jobs.deployment import Deployment
from tests.truth import own

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

ONE = {"include": ["accounts"]}
"""Every log is read whole; one table is enough to see what was written."""

BLOCK = bytes.fromhex("d5ba0bab")
"""The magic of a block that is not compressed (`src/box/xlog.c`)."""


def flipped(data: bytes) -> bytes:
    """Return the log with one bit of its second block's rows flipped."""
    position = data.index(BLOCK, data.index(BLOCK) + 4) + 30
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def unmarked(data: bytes) -> bytes:
    """Return the log with a damaged magic of its second block."""
    position = data.index(BLOCK, data.index(BLOCK) + 4)
    return data[:position] + b"\x00\x00\x00\x00" + data[position + 4 :]


def of_another_version(data: bytes) -> bytes:
    """Return the log with an unknown version in its header."""
    return data.replace(b"\n0.13\n", b"\n0.99\n", 1)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(flipped, "checksum", id="checksum"),
        pytest.param(unmarked, "no block starts here", id="magic", marks=pytest.mark.soak),
        pytest.param(of_another_version, "version", id="version", marks=pytest.mark.soak),
    ],
)
def test_damage_is_reported_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes], reason: str
) -> None:
    source = tmp_path / "a1"
    shutil.copytree(own().directory("a1"), source)
    log = max(source.glob("*.xlog"), key=lambda path: path.stat().st_size)
    log.write_bytes(damage(log.read_bytes()))
    deployment = Deployment(tmp_path, {"a1": source}, spaces=ONE)
    file = tmp_path / "config.yaml"
    file.write_text(deployment.config().model_dump_json(), encoding="utf-8")
    assert main("run", ["--once", "--config", str(file)]) == FAILED
    errors = capsys.readouterr().err
    line = next(one for one in errors.splitlines() if one.startswith("error: "))
    assert log.name in line
    assert reason in line
    assert re.search(r"(offset|position) \d+", line) or reason == "version"
    assert not deployment.rows("_epochs")
    # The file is mended: the same command continues from where it stopped.
    shutil.copy(own().directory("a1") / log.name, log)
    assert main("run", ["--once", "--config", str(file)]) == 0
    assert deployment.tuples("accounts") == sorted(own().tuples("a1", "accounts"))
