"""A job under spark-submit: Delta without options, the job's own Python, mistakes reported with exit code 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.runtime.session import delta_coordinates

pytestmark = pytest.mark.spark

SPARK_SUBMIT = Path(sys.executable).parent / "spark-submit"

JAVA_OPTIONS = {"SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"}
"""Of the tests, for a Java that lives for seconds: they change how fast it starts, and nothing else."""

JOB = """
import sys
from jobs.runtime.command_line import run_command, command, config_option, load_deployment
from jobs.runtime.session import spark_session

@command("job")
@config_option
def main(config):
    config = load_deployment(config)
    spark = spark_session(config, "submitted")
    spark.sql("CREATE DATABASE d")
    spark.range(3).write.format("delta").saveAsTable("d.t")
    print("rows", spark.table("d.t").count(), spark.conf.get("spark.sql.session.timeZone"))

sys.exit(run_command(main))
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text("warehouse: wh\ncheckpoint: cp\nsources: [{name: a, path: a}]\n")
    (tmp_path / "bad.yaml").write_text("warehouse: wh\ncheckpoint: cp\nsources: [{name: a, paht: a}]\n")
    file = tmp_path / "job.py"
    file.write_text(JOB)
    return file


def submit(job: Path, config: str, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a job as a user does, without the environment of the test's own Spark.

    spark-submit writes both outputs of the job's Python to its stdout.
    """
    inherited = {
        name: value for name, value in os.environ.items() if "SPARK" not in name or name in JAVA_OPTIONS
    }
    path = f"{SPARK_SUBMIT.parent}{os.pathsep}{os.environ['PATH']}"
    options = [
        "--master",
        "local[1]",
        "--conf",
        "spark.ui.enabled=false",
        "--conf",
        "spark.jars.ivy=/nowhere",
        *more,
    ]
    return subprocess.run(
        [str(SPARK_SUBMIT), *options, str(job), "--config", str(job.parent / config)],
        env={**inherited, "PATH": path, **environment},
        cwd=job.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_spark_submit_finds_delta_without_an_option_or_a_network(job: Path) -> None:
    ended = submit(job, "good.yaml")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "rows 3 UTC\n"
    assert (job.parent / "wh" / "d.db" / "t" / "_delta_log").is_dir()


PYTHONS = """
import sys
from pyspark.sql.functions import udf
from jobs.runtime.command_line import run_command, command, config_option, load_deployment
from jobs.runtime.session import spark_session

@command("job")
@config_option
def main(config):
    config = load_deployment(config)
    python = udf(lambda _: sys.executable)
    print(sys.executable, *spark_session(config, "submitted").range(1).select(python("id")).first())

sys.exit(run_command(main))
"""


@pytest.mark.soak
def test_workers_run_another_python_where_one_is_named(job: Path, tmp_path: Path) -> None:
    """On the workers' machines Python may have another path."""
    there = tmp_path / "elsewhere"
    there.symlink_to(Path(sys.executable).parent.parent)
    job.write_text(PYTHONS)
    named = {"driver.python": sys.executable, "python": there / "bin" / "python"}
    words = [word for name, path in named.items() for word in ("--conf", f"spark.pyspark.{name}={path}")]
    ended = submit(job, "good.yaml", *words)
    assert ended.stdout == f"{sys.executable} {there}/bin/python\n", ended.stderr


def test_a_wrong_configuration_ends_spark_submit_with_2_and_nothing_starts(job: Path) -> None:
    ended = submit(job, "bad.yaml")
    assert ended.returncode == 2
    assert "sources[0].paht: 'paht' is not a key here; did you mean path?" in ended.stdout
    assert not (job.parent / "wh").exists()


@pytest.mark.soak
def test_without_delta_the_error_says_what_to_do(job: Path, tmp_path: Path) -> None:
    """A Spark whose jars are elsewhere: all of ours but Delta's."""
    import pyspark

    bare = tmp_path / "jars"
    bare.mkdir()
    for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar"):
        if not jar.name.startswith("delta-"):
            (bare / jar.name).symlink_to(jar)
    ended = submit(job, "good.yaml", SPARK_HOME=str(_home(tmp_path, bare)))
    assert ended.returncode == 2, ended.stderr
    assert "error: this Spark has no Delta" in ended.stdout
    assert f"--packages {delta_coordinates()}" in ended.stdout


def _home(folder: Path, jars: Path) -> Path:
    """Return a SPARK_HOME with different jars than the installed one, and without our settings."""
    import pyspark

    home = folder / "spark"
    home.mkdir()
    installed = Path(pyspark.__file__).parent
    for part in ("bin", "python"):
        (home / part).symlink_to(installed / part)
    (home / "jars").symlink_to(jars)
    return home
