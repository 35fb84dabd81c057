"""The wheel alone, without the repository: what is in it, and what `aggregator setup` makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.installation.kernels import recordings
from tests.jobs.standalone import pack_project, python_without_project

KERNELS = "from jobs.installation.kernels import recordings; print(recordings())"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    interpreter = python_without_project(folder / "venv")
    (wheel,) = pack_project(folder / "dist").parent.glob("*.whl")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--python",
        str(interpreter),
        "install",
        "--no-deps",
        "--ignore-installed",
    ]
    subprocess.run([*pip, str(wheel)], check=True, timeout=120)
    return interpreter


def run(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(python), *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def test_it_has_all_that_set_up_and_report_need(python: Path, tmp_path: Path) -> None:
    ended = run(python, tmp_path, "-c", KERNELS)
    assert ended.returncode == 0, ended.stderr
    installed = Path(ended.stdout.strip())
    assert installed.is_relative_to(python.parents[1])
    expected = {
        path.relative_to(recordings() / name)
        for name in ("a1", "b1")
        for path in (recordings() / name).rglob("*")
    }
    found = {
        path.relative_to(installed / name) for name in ("a1", "b1") for path in (installed / name).rglob("*")
    }
    assert found == expected
    packages = python.parents[1] / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    files = (
        "observe/report/vega.js",
        "jobs/installation/jars-delta.sha256",
        "jobs/installation/jars-s3.sha256",
    )
    assert [name for name in files if not (packages / name).is_file()] == []


def test_its_command_runs_in_another_folder(python: Path, tmp_path: Path) -> None:
    ended = run(python.with_name("aggregator"), tmp_path, "doctor", "--config", "none.yaml")
    assert ended.returncode == 2
    assert "none.yaml" in ended.stderr
