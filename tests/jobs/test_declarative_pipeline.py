"""The example of a Spark Declarative Pipeline over logs runs as it is, and its tables hold the rows of the logs."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.oracle.log import read_log

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        importlib.util.find_spec("grpc") is None,
        reason="spark-pipelines needs grpcio: setup/setup.sh with-pipelines",
    ),
]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "conf" / "pipelines"
LOGS = ROOT / "tests" / "recordings" / "2.6.0" / "a1"


def test_the_example_runs_and_its_tables_hold_the_rows(tmp_path: Path) -> None:
    project = tmp_path / "pipelines"
    shutil.copytree(EXAMPLE, project)
    file = project / "spark-pipeline.yml"
    spec = yaml.safe_load(file.read_text())
    spec["storage"] = (tmp_path / "storage").as_uri()
    spec["configuration"]["tarantool.logs"] = str(LOGS)
    file.write_text(yaml.safe_dump(spec))
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", str(file)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    expected = sum(1 for one in LOGS.glob("*.xlog") for _ in read_log(one))
    changes = pq.read_table(tmp_path / "spark-warehouse" / "changes")
    assert changes.num_rows == expected
    by_type = pq.read_table(tmp_path / "spark-warehouse" / "changes_by_type")
    assert sum(by_type["count"].to_pylist()) == expected
