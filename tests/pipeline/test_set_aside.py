"""A table of a space that somebody else has changed is set aside: the others go on, and `rebuild` mends it."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest
from deltalake import DeltaTable, Field, TableFeatures, write_deltalake
from deltalake.schema import PrimitiveType

from observe.deployment_problems import deployment_problems
from pipeline.commit.batch import commit_batch
from pipeline.requests.mend import mend_tables, tables_to_mend
from schemas.errors import SourceError, WarehouseError
from schemas.states import RequestState
from tests.jobs.test_maintenance_request import serving
from tests.jobs.written import FIELDS, Node, replicasets_of
from tests.pipeline.deployment import Deployment
from tests.pipeline.test_foreign_commits import disturbed
from warehouse.delta.location import location_of
from warehouse.delta.newest_epoch import newest_epoch_row
from warehouse.system_tables import requests

HIT, OTHER = 600, 601
Act = Callable[[DeltaTable], object]


def cut_log(table: DeltaTable) -> None:
    """Lose the newest commit, as an older copy of the folder has it."""
    log = Path(table.table_uri.removeprefix("file://")) / "_delta_log"
    sorted(log.glob("*.json"))[-1].unlink()
    for checkpoint in (*log.glob("*.parquet"), *log.glob("_last_checkpoint")):
        checkpoint.unlink()


def make_hole(table: DeltaTable) -> None:
    """Lose a commit before the newest one."""
    lose_commit(table, -2)


def make_deep_hole(table: DeltaTable) -> None:
    """Lose a commit before the two newest ones."""
    for number in range(3 if table.version() < 3 else 0):
        table.alter.set_table_properties({"note": str(number)}, raise_if_not_exists=False)
    lose_commit(table, -4)


def lose_commit(table: DeltaTable, place: int) -> None:
    log = Path(table.table_uri.removeprefix("file://")) / "_delta_log"
    sorted(log.glob("*.json"))[place].unlink()


HARMFUL: Mapping[str, Act] = {
    "delete": lambda table: table.delete("id > 1"),
    "update": lambda table: table.update(updates={"_lsn": "_lsn + 1"}),
    "insert": lambda table: write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append"),
    "restore": lambda table: table.restore(0),
    "constraint": lambda table: table.alter.add_constraint({"positive": "id > -1"}),
    "row tracking": lambda table: table.alter.add_feature(
        TableFeatures.RowTracking, allow_protocol_versions_increase=True
    ),
    "lost": lambda table: shutil.rmtree(table.table_uri.removeprefix("file://")),
}
CHANGES: Mapping[str, Act] = {**HARMFUL, "older": cut_log, "hole": make_hole, "deep hole": make_deep_hole}
LOST = ("lost", "older", "hole", "deep hole")
"""Of which the version that the newest epoch names is gone."""


class Two:
    """Two replicasets with the spaces `hit` and `other`, whose rows come in two parts."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.nodes = {name: Node(folder, name) for name in ("a1", "b1")}
        sources = {name: node.path for name, node in self.nodes.items()}
        newest = {"policies": {"default": {"policy": "max", "column": "updated"}}}
        self.tables = Deployment(folder, sources, replicasets_of("a1", "b1"), **{**newest, **settings})
        self.expected: dict[str, dict[int, dict[int, list[Any]]]] = {
            name: {HIT: {}, OTHER: {}} for name in sources
        }
        for node in self.nodes.values():
            node.define(HIT, "hit").define(OTHER, "other")
        self.write(range(1, 6), 1)

    def write(self, keys: range, moment: int) -> None:
        """Write keys in both spaces of both replicasets; half of them are in both."""
        for number, (name, node) in enumerate(self.nodes.items()):
            for key in keys:
                for space in (HIT, OTHER):
                    row: list[Any] = [key + 3 * number, name, moment, moment]
                    node.put(space, *row, at=moment + number)
                    self.expected[name][space][row[0]] = row
            node.close()

    def snapshot(self) -> None:
        for name, node in self.nodes.items():
            node.snapshot({space: list(rows.values()) for space, rows in self.expected[name].items()})

    def winners(self, space: int) -> list[list[Any]]:
        """Return the newest tuple of each key; of two equally new ones the second replicaset's."""
        found: dict[int, list[Any]] = {}
        for name in self.nodes:
            for key, row in self.expected[name][space].items():
                if key not in found or found[key][3] <= row[3]:
                    found[key] = row
        return [found[key] for key in sorted(found)]

    def rows(self, space: str) -> list[list[Any]]:
        return sorted(msgpack.unpackb(one) for one in self.tables.tuples(space))

    @property
    def path(self) -> Path:
        return self.tables.folder / "warehouse" / "aggregator.db" / "hit"


MOMENTS = ("between two batches", "between lookup and commit", "while it is stopped")
IN_SUITE = {("delete", moment) for moment in MOMENTS} | {
    ("lost", MOMENTS[1]),
    ("older", MOMENTS[1]),
    ("deep hole", MOMENTS[2]),
    ("row tracking", MOMENTS[0]),
}
CASES = [
    pytest.param(change, moment, marks=() if (change, moment) in IN_SUITE else pytest.mark.soak)
    for change in CHANGES
    for moment in MOMENTS
]


def test_a_batch_that_is_committed_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commit may have reached the store although it failed here; somebody else changes a table meanwhile."""
    two = Two(tmp_path)
    two.tables.run()
    two.write(range(4, 9), 2)

    def committed(*arguments: Any, **named: Any) -> object:
        commit_batch(*arguments, **named)
        HARMFUL["delete"](DeltaTable(str(two.path)))
        raise OSError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.batch.commit_batch", committed)
        with pytest.raises(WarehouseError, match="is committed nevertheless, as epoch 1"):
            two.tables.run()
    two.tables.run()
    rows = [(row["replicaset_id"], row["replica_id"], row["lsn"]) for row in two.tables.rows("_changelog")]
    assert len(rows) == len(set(rows))
    assert two.rows("other") == two.winners(OTHER)


@pytest.mark.parametrize(("change", "when"), CASES)
def test_a_changed_table_is_set_aside_and_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, when: str
) -> None:
    two = Two(tmp_path)
    two.tables.run()
    act = CHANGES[change]
    if when == "while it is stopped":
        act(DeltaTable(str(two.path)))
        two.write(range(4, 9), 2)
        two.tables.run()
    elif when == "between two batches":
        with two.tables.writer() as (_, writer):
            act(DeltaTable(str(two.path)))
            two.write(range(4, 9), 2)
            two.tables.batch(writer)
    else:
        acted: list[object] = []

        def once(table: str, opened: DeltaTable) -> None:
            if table == "hit" and not acted:
                acted.append(act(opened))

        two.write(range(4, 9), 2)
        with disturbed(monkeypatch, once):
            two.tables.run()
    config = two.tables.config()
    named = {
        one.condition for one in deployment_problems(config) if one.subject in ("table hit", "space hit")
    }
    problem = "table_lost" if change in LOST else "table_changed"
    is_found_later = (change, when) == ("hole", MOMENTS[1])  # the commit that it is based on is there
    assert named == ({problem} if is_found_later else {problem, "spaces_refused"})
    assert two.rows("other") == two.winners(OTHER)
    row = newest_epoch_row(location_of(config.warehouse))
    if change not in LOST:
        kept = DeltaTable(str(two.path), version=dict(row["versions"])["hit"]).to_pyarrow_table()
        assert sorted(kept["id"].to_pylist()) == list(range(1, 9))
    with two.tables.writer() as (warehouse, writer):
        with pytest.raises(SourceError, match="has a snapshot with the space hit; nothing was changed"):
            mend_tables(config, warehouse, writer, "hit", "mend")
        two.snapshot()
        two.write(range(7, 10), 3)
        two.tables.batch(writer)
        assert tables_to_mend(writer.state, config, "hit") == ["hit"]
        mend_tables(config, warehouse, writer, "hit", "mend")
        assert tables_to_mend(writer.state, config, "hit") == []
    two.write(range(2, 11), 4)
    two.tables.run()
    assert two.rows("hit") == two.winners(HIT)
    assert two.rows("other") == two.winners(OTHER)
    assert deployment_problems(config) == []


@pytest.mark.parametrize("change", ["delete", "older"])
def test_a_running_job_rebuilds_a_table_that_no_batch_has_met_since(tmp_path: Path, change: str) -> None:
    two = Two(tmp_path)
    two.tables.run()
    two.snapshot()
    newest = {"policy": "max", "column": "updated"}
    with serving(two.tables) as (warehouse, service):
        CHANGES[change](DeltaTable(str(two.path)))
        request = requests.ask(warehouse, "rebuild", {"space": "hit", "policy": newest})
        service.serve()
        answer = requests.with_newest_state(warehouse, request)
        assert (answer.state, answer.message) == (RequestState.DONE, answer.message)
    assert two.rows("hit") == two.winners(HIT)
    assert deployment_problems(two.tables.config()) == []


def test_a_table_that_others_take_back_goes_on(tmp_path: Path) -> None:
    two = Two(tmp_path)
    two.tables.run()
    version = DeltaTable(str(two.path)).version()
    HARMFUL["delete"](DeltaTable(str(two.path)))
    DeltaTable(str(two.path)).restore(version)
    two.write(range(4, 9), 2)
    two.tables.run()
    assert two.rows("hit") == two.winners(HIT)
    assert deployment_problems(two.tables.config()) == []


@pytest.mark.parametrize("vectors", ["always", "never"])
def test_a_column_of_their_own_stays(tmp_path: Path, vectors: str) -> None:
    two = Two(tmp_path, deletion_vectors=vectors)
    two.tables.run()
    note = Field("note", PrimitiveType("string"), nullable=True)
    with two.tables.writer() as (_, writer):
        DeltaTable(str(two.path)).alter.add_columns([note])
        two.write(range(4, 9), 2)
        two.tables.batch(writer)
    assert two.rows("hit") == two.winners(HIT)
    renamed = (*FIELDS[:2], ("amount", "integer"), FIELDS[3])
    for number, fields in enumerate((renamed, (*FIELDS, ("more", "string")))):
        for node in two.nodes.values():
            node.redefine(HIT, "hit", fields)
        two.write(range(8, 12), 3 + number)
        two.tables.run()
        assert two.rows("hit") == two.winners(HIT)
        opened = DeltaTable(str(two.path))
        assert "note" in {field.name for field in opened.schema().fields}
        assert {row["note"] for row in two.tables.rows("hit", ["note"])} == {None}
    assert "more" in {field.name for field in opened.schema().fields}
    assert deployment_problems(two.tables.config()) == []
