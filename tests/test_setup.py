"""Set-up on a machine that lacks something: what is missing is named, nothing is begun."""

import hashlib
import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMPILING = runpy.run_path(str(ROOT / "setup" / "compile_pyspark.py"))
TOOLS = ("bash", "cat", "dirname", "env", "grep", "id", "mkdir", "sed", "sha256sum")
LOCKS = ("requirements-run.lock", "requirements-test.lock", "requirements-docs.lock")
SPARK = ".venv/lib/python3.11/site-packages/pyspark/version.py"
PARTS: Mapping[str, tuple[str, ...]] = {
    ".venv/.parts/tools": ("setup/tools.lock",),
    ".venv/.parts/packages": ("setup/tools.lock", "requirements-run.lock"),
    ".venv/.parts/project": ("setup/tools.lock", "requirements-run.lock", "pyproject.toml"),
    ".venv/.parts/jars": (SPARK, "jobs/installation/spark_jars.py", "jobs/installation/jars-delta.sha256"),
    ".venv/.parts/bytecode": (SPARK, "setup/compile_pyspark.py"),
}
"""The notes of parts that are done, each with the files of which the note has the SHA-256."""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a folder with a copy of the set-up, and a `bin` with next to nothing."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (tmp_path / "bin" / tool).symlink_to(found)
    shutil.copytree(ROOT / "setup", tmp_path / "setup")
    shutil.copytree(ROOT / "jobs" / "installation", tmp_path / "jobs" / "installation")
    for file in (*LOCKS, "pyproject.toml"):
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


def note_done(machine: Path, *parts: str) -> None:
    """Write the notes of parts, as if they were done."""
    (machine / SPARK).parent.mkdir(parents=True, exist_ok=True)
    (machine / SPARK).write_text("__version__ = '4.2.0'\n")
    lock = (machine / "requirements-run.lock").read_text().splitlines(keepends=True)
    (machine / "udfs" / "__pycache__").mkdir(parents=True, exist_ok=True)
    (machine / "udfs" / "__pycache__" / "compiled").write_text(*(x for x in lock if x.startswith("numba==")))
    for part in parts:
        text = b"".join((machine / file).read_bytes() for file in PARTS[part])
        (machine / part).parent.mkdir(parents=True, exist_ok=True)
        (machine / part).write_text(f"{hashlib.sha256(text).hexdigest()}  -\n")


def python_that_notes(machine: Path, fails_at: str = "") -> Path:
    """Make the environment's Python a program that notes its arguments, and fails where they contain a text."""
    program = machine / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        f'#!{machine}/bin/bash\necho "$@" >> "{machine}/called"\n[[ -z "{fails_at}" || "$*" != *"{fails_at}"* ]]\n'
    )
    program.chmod(0o755)
    return machine / "called"


def test_where_all_is_there_nothing_is_done(machine: Path) -> None:
    note_done(machine, *PARTS)
    ended = set_up(machine)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_set_up_that_failed_goes_on_with_what_is_missing(machine: Path) -> None:
    note_done(
        machine, *(part for part in PARTS if part not in (".venv/.parts/jars", ".venv/.parts/bytecode"))
    )
    called = python_that_notes(machine, fails_at="aggregator setup delta")
    assert set_up(machine).returncode == 1
    assert "-m aggregator setup delta" in called.read_text().splitlines()
    called.unlink()
    python_that_notes(machine)
    assert set_up(machine).returncode == 0
    again = called.read_text().splitlines()
    assert "-m aggregator setup delta" in again
    assert {*again} <= {"-m aggregator setup delta", "setup/compile_pyspark.py"}
    called.unlink()
    assert set_up(machine).returncode == 0
    assert not called.exists()


def test_what_tests_need_is_installed_only_for_them(machine: Path) -> None:
    note_done(machine, *PARTS)
    called = python_that_notes(machine)
    assert set_up(machine, "with-docs").returncode == 0
    text = called.read_text()
    assert "requirements-docs.lock" in text
    assert "requirements-test.lock" not in text
    assert set_up(machine, "with-tests").returncode == 0
    text = called.read_text()
    assert text.count("requirements-docs.lock") == 1
    assert "requirements-test.lock" in text
    assert "-m aggregator setup classes" in text


def test_without_a_tarantool_it_goes_on_and_says_so(machine: Path) -> None:
    test_where_all_is_there_nothing_is_done(machine)
    ended = set_up(machine, "with-tarantool")
    assert ended.returncode == 0
    assert "the tests marked 'live' will be skipped" in ended.stderr


def test_spark_finds_compiled_code_in_its_zips(tmp_path: Path) -> None:
    zipped = tmp_path / "library.zip"
    with ZipFile(zipped, "w") as file:
        file.writestr("library/__init__.py", "VALUE = 7\n")
        file.writestr("library/README.md", "text")
    assert not COMPILING["is_compiled"](zipped)
    COMPILING["compile_zip"](zipped)
    assert COMPILING["is_compiled"](zipped)
    COMPILING["compile_zip"](zipped)  # an older one's, of another Python
    with ZipFile(zipped) as file:
        assert sorted(file.namelist()) == ["library/README.md", "library/__init__.py", "library/__init__.pyc"]
    code = "import library; print(library.VALUE, library.__spec__.loader.get_code('library').co_filename)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(zipped)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "7 library/__init__.py\n"
    assert [zipped.name] == [path.name for path in tmp_path.iterdir()]


def test_sparks_own_zips_are_compiled() -> None:
    assert all(COMPILING["is_compiled"](path) for path in COMPILING["LIB"].glob("*.zip"))


def test_unused_parts_of_packages_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = ["numpy/testing/__init__.py", "numpy/core.py", "other/tests/test_a.py", "pyspark/jars/spark.jar"]
    unused = ["numpy/tests/test_a.py", "numpy/lib/tests/data/a.npy", "pyspark/jars/rocksdbjni-9.8.4.jar"]
    unused += ["pyspark/jars/connect-repl/ammonite_2.13.18-3.0.8.jar"]
    for name in [*kept, *unused]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    runpy.run_path(str(ROOT / "setup" / "remove_unused.py"))["remove_unused"](tmp_path)
    found = (str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file())
    assert sorted(found) == sorted(kept)
