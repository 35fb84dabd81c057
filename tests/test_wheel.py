"""The wheel alone, without the repository: what is in it, and that it runs beside modules of a user."""

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jobs.installation.kernels import recordings
from tests.jobs.standalone import ROOT, pack_project, python_without_project

KERNELS = "from aggregator.jobs.installation.kernels import recordings; print(recordings())"

rewrite = runpy.run_path(str(ROOT / "setup" / "import_name.py"))["rewrite"]


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


def site_packages(python: Path) -> Path:
    return python.parents[1] / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"


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
    package = site_packages(python) / "aggregator"
    files = (
        "observe/report/vega.js",
        "jobs/installation/jars-delta.sha256",
        "jobs/installation/jars-s3.sha256",
        "conf/spark-defaults.conf",
        "conf/aggregator-subscribe.service",
        "conf/prometheus/alerts.yaml",
        "docs/deploy.md",
    )
    assert [name for name in files if not (package / name).is_file()] == []


def test_it_has_the_pages_and_files_that_its_messages_name(python: Path) -> None:
    package = site_packages(python) / "aggregator"
    texts = [path.read_text() for path in package.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"(?<![\w/.-])(?:docs|conf)/[\w./-]*\w", text)}
    assert len(named) > 10
    assert [name for name in named if not (package / name).is_file()] == []


def test_its_command_runs_in_another_folder(python: Path, tmp_path: Path) -> None:
    ended = run(python.with_name("aggregator"), tmp_path, "doctor", "--config", "none.yaml")
    assert ended.returncode == 2
    assert "none.yaml" in ended.stderr


def test_it_installs_one_package(python: Path) -> None:
    installed = {one.name for one in site_packages(python).iterdir()} - {"packages.pth"}
    assert {name for name in installed if not name.endswith(".dist-info")} == {"aggregator"}
    names = {one.name for one in ROOT.iterdir() if (one / "__init__.py").is_file()}
    sources = {path: path.read_text() for path in site_packages(python).joinpath("aggregator").rglob("*.py")}
    imported = {
        (str(path), name)
        for path, text in sources.items()
        for node in ast.walk(ast.parse(text))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    assert [(path, name) for path, name in imported if name.partition(".")[0] in names - {"aggregator"}] == []
    of_project = [path for path, name in imported if name.startswith("aggregator.")]
    assert len(of_project) > 500
    for path, text in sources.items():
        same = ROOT / path.relative_to(site_packages(python))
        original = same if same.is_file() else ROOT / path.relative_to(site_packages(python) / "aggregator")
        assert len(text.split("\n")) == len(original.read_text().split("\n")), path


@pytest.fixture
def folder_of_user(tmp_path: Path) -> Path:
    """Return a folder of a user whose modules have the names of folders of the project."""
    for name in ("config", "schemas", "sources", "jobs/mine", "jobs/__init__"):
        (tmp_path / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(f"NAME = 'my {name}'\n")
    deployment = {"warehouse": str(tmp_path / "wh"), "checkpoint": str(tmp_path / "cp")}
    sources = [{"name": "a", "path": str(recordings() / "a1")}]
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump({**deployment, "sources": sources}))
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


JOB = """
import sys

import config
from jobs import mine
from pyspark.sql import functions as F

from aggregator.config.deployment import load
from aggregator.jobs.runtime.session import log_reading_session

spark = log_reading_session(load("shop.yaml"), "mine")


@F.udf("string")
def named_in_worker(_number):
    import schemas
    from aggregator.schemas import xrow
    from jobs import mine

    return f"{config.NAME}, {schemas.NAME}, {mine.NAME}, {xrow.__name__}"


path = sys.argv[1]
print(config.NAME, mine.NAME, spark.read.format("xlog").load(path).columns[0])
print(spark.range(1).select(named_in_worker("id")).first()[0])
"""


@pytest.mark.spark
def test_a_job_of_a_user_imports_his_modules_and_those_of_the_project(
    python: Path, folder_of_user: Path
) -> None:
    log = next((recordings() / "a1").glob("*.xlog"))
    ended = run(python, folder_of_user, "job.py", str(log))
    assert ended.returncode == 0, ended.stderr
    *_spark, read, named = ended.stdout.splitlines()
    assert read.startswith("my config my jobs/mine file")
    assert named == "my config, my schemas, my jobs/mine, aggregator.schemas.xrow"


@pytest.mark.parametrize(
    "words", [["-m", "aggregator"], ["-m", "aggregator.jobs.validate"], ["{jobs}/backfill.py"]]
)
def test_its_modules_and_scripts_run_beside_modules_of_a_user(
    python: Path, folder_of_user: Path, words: list[str]
) -> None:
    jobs = site_packages(python) / "aggregator" / "jobs"
    ended = run(python, folder_of_user, *(word.format(jobs=jobs) for word in words), "--help")
    assert ended.returncode == 0, ended.stderr
    assert "Usage" in ended.stdout


def test_the_repository_runs_beside_modules_of_a_user(folder_of_user: Path) -> None:
    command = [sys.executable, "-m", "aggregator", "status", "--config", "shop.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=folder_of_user, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "aggregator run" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.soak
def test_it_aggregates_beside_modules_of_a_user(python: Path, folder_of_user: Path) -> None:
    """Compiles all kernels, which takes minutes."""
    ended = run(python.with_name("aggregator"), folder_of_user, "run", "--once", "--config", "shop.yaml")
    assert ended.returncode == 0, ended.stderr
    assert "batch 1: 1993 rows" in ended.stderr
    again = run(python.with_name("aggregator"), folder_of_user, "status", "--config", "shop.yaml")
    assert again.returncode == 0, again.stdout + again.stderr


def test_names_are_rewritten_in_place() -> None:
    text = '''"""Starts `jobs.main`; `config.warehouse` is no module; jobs/main.py, sources.yml."""
from jobs.main import (
    main,  # of jobs.main
)
from . import other
def each(config):
    yield from config
    raise ValueError(f"python -m jobs.main {config.main}") from config
'''
    expected = '''"""Starts `aggregator.jobs.main`; `config.warehouse` is no module; jobs/main.py, sources.yml."""
from aggregator.jobs.main import (
    main,  # of aggregator.jobs.main
)
from . import other
def each(config):
    yield from config
    raise ValueError(f"python -m aggregator.jobs.main {config.main}") from config
'''
    packages, modules = {"jobs", "config", "sources"}, {"jobs.main", "config.deployment"}
    assert rewrite(text, packages, modules) == expected
    with pytest.raises(ValueError, match=r"line 1: import jobs\.main"):
        rewrite("import jobs.main", packages, modules)
