"""Set-up on a machine that lacks something: what is missing is named, nothing is begun."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("bash", "cat", "dirname", "env", "id", "sed", "sha256sum")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a folder with a copy of the set-up, and a `bin` with next to nothing."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (tmp_path / "bin" / tool).symlink_to(found)
    shutil.copytree(ROOT / "setup", tmp_path / "setup")
    for file in ("requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    return tmp_path


def script(machine: Path, name: str, text: str) -> None:
    file = machine / "bin" / name
    file.write_text(f"#!{machine}/bin/bash\n{text}\n")
    file.chmod(0o755)


def set_up(machine: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["setup/setup.sh", *arguments],
        cwd=machine,
        env={"PATH": str(machine / "bin"), "HOME": str(machine), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_without_java(machine: Path) -> None:
    ended = set_up(machine)
    assert ended.returncode == 1
    assert ended.stderr.startswith("set-up: Java 17 is missing: install it")
    assert not (machine / ".venv").exists()


def test_with_another_java(machine: Path) -> None:
    script(machine, "java", "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    ended = set_up(machine)
    assert ended.returncode == 1
    assert "'java' is Java 11: set JAVA_HOME to a Java 17" in ended.stderr


def test_java_home_is_asked_first(machine: Path) -> None:
    script(machine, "java", "echo 'openjdk version \"17.0.2\" 2022-01-18' >&2")
    assert "Java 17 is missing" in set_up(machine, JAVA_HOME="/nowhere").stderr


@pytest.mark.parametrize("named", ["", "/nowhere/python3.11"])
def test_without_python(machine: Path, named: str) -> None:
    script(machine, "java", "echo 'openjdk version \"17.0.2\" 2022-01-18' >&2")
    script(machine, "python3", "exit 1  # another version: the check of it fails")
    ended = set_up(machine, PYTHON=named)
    assert ended.returncode == 1
    assert ended.stderr.startswith("set-up: Python 3.11 is missing: install it")
    assert not (machine / ".venv").exists()


def test_where_all_is_there_nothing_is_done(machine: Path) -> None:
    names = ("requirements.lock", "pyproject.toml", "setup/audit.sh", "setup/setup.sh")
    names += ("setup/locks.py", "setup/spark_jars.py")
    parts = [machine / name for name in names]
    text = b"".join(part.read_bytes() for part in parts)
    digest = subprocess.run(["sha256sum"], input=text, capture_output=True, check=True).stdout
    (machine / ".venv").mkdir()
    (machine / ".venv" / ".set-up").write_bytes(digest)
    ended = set_up(machine)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_without_a_tarantool_it_goes_on_and_says_so(machine: Path) -> None:
    test_where_all_is_there_nothing_is_done(machine)
    ended = set_up(machine, "with-tarantool")
    assert ended.returncode == 0
    assert "the tests marked 'live' will be skipped" in ended.stderr
