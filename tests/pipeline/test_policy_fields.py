"""A policy that names a field which no replicaset has: it decides nothing, so the job warns and a rebuild refuses."""

from pathlib import Path

import pytest

from config.policies import Policies, Policy
from pipeline.commit.load import load_state
from pipeline.plan.spaces.tables import unknown_fields
from pipeline.requests.rebuild import plan_rebuild
from pipeline.start import open_writer
from schemas.errors import UnsupportedError
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment
from warehouse.lock.lock import WriterLock
from warehouse.warehouse import Warehouse

USERS = 600
MISSPELT = (
    "users: its policy names the field valeu, which no replicaset has, so it decides nothing: "
    "did you mean value?"
)


def deployed(folder: Path, names: tuple[str, ...], **policy: object) -> Deployment:
    nodes = {name: Node(folder, name).define(USERS, "users") for name in names}
    for node in nodes.values():
        node.put(USERS, 1, node.path.name, 1, 1).close()
    paths = {name: node.path for name, node in nodes.items()}
    return Deployment(folder, paths, replicasets_of(*names), policies={"spaces": {"users": policy}})


def test_the_job_warns_where_the_space_is_defined_and_where_it_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = deployed(tmp_path, ("a1", "b1"), policy="max", column="valeu")
    made.run()
    assert caplog.messages.count(MISSPELT) == 1
    caplog.clear()
    config = made.config()
    warehouse = Warehouse(None, config.warehouse, config.database)
    with WriterLock(warehouse, "a test") as lock:
        open_writer(config, warehouse, lock)
    assert caplog.messages.count(MISSPELT) == 1


@pytest.mark.parametrize(
    ("names", "column"), [(("a1",), "valeu"), (("a1", "b1"), "value")], ids=["one replicaset", "well spelt"]
)
def test_the_job_does_not_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, ...], column: str
) -> None:
    deployed(tmp_path, names, policy="max", column=column).run()
    assert "its policy names" not in caplog.text


def test_a_rebuild_is_refused(tmp_path: Path) -> None:
    made = deployed(tmp_path, ("a1", "b1"))
    made.run()
    config = made.config()
    warehouse = Warehouse(None, config.warehouse, config.database)
    state, wanted = load_state(warehouse), Policy(policy="max", column="valeu")
    with pytest.raises(UnsupportedError, match="names the field valeu, which no replicaset has") as caught:
        plan_rebuild(warehouse.open_tables, state, config, "users", wanted)
    assert caught.value.fields["advice"] == "did you mean value?"


def test_every_key_that_names_fields_is_looked_at() -> None:
    policies = Policies.model_validate(
        {
            "spaces": {
                "a": {"policy": "merge_fields", "fields": {"one": ["two"]}, "sequence": ["three"]},
                "b": {"policy": "sum", "columns": ["four", "five"]},
                "c": {"policy": "min", "column": "six"},
            }
        }
    )
    assert unknown_fields(policies.of("a"), ()) == ("one", "two", "three")
    assert unknown_fields(policies.of("b"), ()) == ("four", "five")
    assert unknown_fields(policies.of("c"), ()) == ("six",)
