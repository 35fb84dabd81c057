"""Machine code of kernels under a user who may not write: beside the sources, in a service's folder, or nowhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOUBLED = """
import logging
import sys

from schemas.compiled import entry

logging.basicConfig(format="%(message)s", stream=sys.stdout)


@entry
def twice(value):
    return 2 * value


@entry
def thrice(value):
    return 3 * value


def results():
    return twice(21), thrice(14), *(sum(one.stats.cache_hits.values()) for one in (twice, thrice))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with a module of kernels."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "doubled.py").write_text(DOUBLED)
    return folder


def bound_by_rights() -> list[str]:
    """Return the beginning of a command that may write only where the rights of files say so, for root too."""
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and there is no setpriv")
    rights = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]


def run(package: Path, code: str, **environment: str) -> str:
    """Run code with the module `doubled`, whose rights are those of its files."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{package}:{ROOT}", **environment}
    command = [*bound_by_rights(), sys.executable, "-B", "-c", f"import doubled; {code}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def close(package: Path) -> None:
    """Take the right to write from the package's folders."""
    for path in (package, *package.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_installed_kernels_are_used_as_they_are(package: Path) -> None:
    assert run(package, "print(doubled.results())") == "(42, 42, 0, 0)"
    close(package)
    assert run(package, "print(doubled.results())", HOME=str(package / "home")) == "(42, 42, 1, 1)"


def test_what_is_missing_goes_to_the_folder_of_the_service(package: Path, tmp_path: Path) -> None:
    run(package, "doubled.twice(21)")
    close(package)
    folder = tmp_path / "service"
    names = f"{package}/closed:{folder}"
    calls = "print(doubled.results())"
    assert run(package, calls, HOME=str(package / "home"), CACHE_DIRECTORY=names) == "(42, 42, 1, 0)"
    assert run(package, calls, HOME=str(package / "home"), CACHE_DIRECTORY=names) == "(42, 42, 1, 1)"
    assert {path.name.partition("-")[0] for path in folder.rglob("*.nbi")} == {"doubled.thrice"}


def test_where_nothing_can_be_written_it_runs_with_one_warning(package: Path) -> None:
    close(package)
    lines = run(package, "print(doubled.results())", HOME=str(package / "home")).splitlines()
    assert lines[-1] == "(42, 42, 0, 0)"
    (warning,) = lines[:-1]
    assert "compiled kernels cannot be stored" in warning
    assert f"Permission denied: '{package}/__pycache__" in warning


def test_a_folder_that_is_named_comes_first(package: Path, tmp_path: Path) -> None:
    run(package, "doubled.results()", NUMBA_CACHE_DIR=str(tmp_path / "named"))
    assert not (package / "__pycache__").exists()
    assert len([*(tmp_path / "named").rglob("*.nbi")]) == 2
