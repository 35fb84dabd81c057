"""The command lines that the tasks run, rendered by Airflow itself, against golden files.

A golden file is rewritten with `UPDATE_GOLDEN=1`; look at what changed before it is committed.
"""

import os
import shlex
from pathlib import Path

import pytest

from tests.airflow_dags.airflow import ask, installed

pytestmark = installed

GOLDEN = Path(__file__).parent / "golden"
DAGS = ("backfill", "maintenance", "proof", "repair", "validation")

RENDER = """
import json, sys
from datetime import UTC, datetime
from airflow.dag_processing.dagbag import DagBag

bag = DagBag(sys.argv[1])
variables = json.loads(sys.argv[2])
found = {}
for dag in bag.dags.values():
    for task in dag.tasks:
        times = {"data_interval_start": datetime(2026, 11, 20, 10, tzinfo=UTC),
                 "data_interval_end": datetime(2026, 11, 20, 11, tzinfo=UTC)}
        task.render_template_fields({"var": {"value": variables}, **times})
        hook = task._get_hook()
        found[f"{dag.dag_id}.{task.task_id}"] = hook._build_spark_submit_command(task.application)
print("FOUND " + json.dumps(found))
"""

CONFIGURED = (
    '{"aggregator_home": "/srv/aggregator", "aggregator_config": "/etc/aggregator.yaml", '
    '"aggregator_py_files": "/srv/policies.py"}'
)


@pytest.mark.parametrize(("name", "variables"), [("defaults", "{}"), ("configured", CONFIGURED)])
def test_the_lines_are_those_that_were_looked_at(name: str, variables: str, tmp_path: Path) -> None:
    found = ask(RENDER, tmp_path, variables)
    assert {line.split(".")[0] for line in found} == {f"aggregator_{dag}" for dag in DAGS}
    text = "".join(f"{task}\n    {shlex.join(line)}\n" for task, line in sorted(found.items()))
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
