"""The way back from an upgrade, as docs/corrections.md prints it: copy before, promote the copy, go on with it."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.rid import main
from pipeline.commit.epoch import commit_epoch
from schemas.errors import RidStateError, WarehouseError
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment
from warehouse.copies.primary import PrimaryLock
from warehouse.delta.location import location_of
from warehouse.delta.read import rows_of
from warehouse.warehouse import Warehouse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "corrections.md").read_text(encoding="utf-8")
COMMANDS = re.findall(
    r"^    aggregator rid (.*)$", PAGE.partition("**The way back.**")[2].partition("\n## ")[0], re.MULTILINE
)
S = 600


def test_the_copy_goes_on_where_the_newer_version_is_refused(tmp_path: Path) -> None:
    copy, promote = (shlex.split(line.replace("/data/", f"{tmp_path}/")) for line in COMMANDS)
    node = Node(tmp_path, "a1").define(S, "s").put(S, 1, "before", 1, 1)
    made = Deployment.aggregated(tmp_path, node)
    with PrimaryLock(Warehouse(None, made.config().warehouse), "a test"):
        pass  # as each job does at its start: the warehouse gets its RID
    assert main(copy) == 0
    node.put(S, 1, "by the newer version", 2, 2).put(S, 2, "of it", 1, 1).close()
    made.run()
    with made.writer() as (_, writer):
        commit_epoch(writer.tables, replace(writer.state, settings='{"format": 1000}'), {}, ("newer", 1))
    with pytest.raises(WarehouseError, match="newer"):
        made.run()
    made.settings["warehouse"] = str(tmp_path / "before")
    made.offset = {}
    lock = PrimaryLock(Warehouse(None, made.config().warehouse), "a test")
    with pytest.raises(RidStateError), lock:
        pass
    assert main(promote) == 0
    with lock:
        pass
    made.run()
    table = location_of(made.config().warehouse).open("s")
    assert table is not None
    assert {(row["id"], row["name"]) for row in rows_of(table, ["id", "name"])} == {
        (1, "by the newer version"),
        (2, "of it"),
    }
