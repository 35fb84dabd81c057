"""Airflow's own Python, run by the tests in its own environment: to look at the DAGs, to render and to run them."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-airflow" / "bin" / "python"
MARK = "FOUND "

installed = pytest.mark.skipif(
    not PYTHON.exists(), reason="Airflow is not installed: setup/setup.sh with-airflow"
)


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of an Airflow whose state lies in a folder.

    The project's own environment comes first on PATH, for spark-submit; its variables of pytest's Spark do not.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYSPARK", "SPARK_"))}
    return {
        **kept,
        "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "airflow_dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        **(more or {}),
    }


def ask(
    script: str, home: Path, *arguments: str, seconds: float = 900, variables: Mapping[str, str] | None = None
) -> Any:
    """Return what a script of Airflow's Python prints behind `FOUND`, as JSON."""
    command = [str(PYTHON), "-c", script, str(ROOT / "airflow_dags"), *arguments]
    done = run(command, environment(home, variables), home, seconds)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    assert lines, (done.stdout + done.stderr)[-3000:]
    return json.loads(lines[-1].removeprefix(MARK))


def migrate(home: Path) -> None:
    """Make Airflow's database."""
    done = run([str(PYTHON), "-m", "airflow", "db", "migrate"], environment(home), home, 300)
    assert done.returncode == 0, done.stderr[-2000:]


def run(
    command: list[str], variables: Mapping[str, str], folder: Path, seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a command; where it takes too long, what it has started ends with it."""
    process = subprocess.Popen(
        command,
        env=dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return subprocess.CompletedProcess(command, process.returncode, out, err)
