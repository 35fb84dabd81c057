"""A table of a space that somebody else has changed is set aside: the others go on, and `rebuild` mends it."""

import shutil
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, TableFeatures, write_deltalake
from deltalake.schema import PrimitiveType

from observe.deployment_problems import deployment_problems
from pipeline.commit.batch import commit_batch
from pipeline.requests.mend import mend_tables, tables_to_mend
from schemas.errors import ForeignChangeError, SourceError, WarehouseError
from schemas.states import RequestState
from tests.jobs.test_maintenance_request import serving
from tests.jobs.written import FIELDS, Node, replicasets_of
from tests.pipeline.deployment import Deployment
from tests.pipeline.test_foreign_commits import HARMLESS, disturbed
from tests.soaked import partly_soaked
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


def add_note(table: DeltaTable) -> None:
    table.alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])


UNCHANGED: Mapping[str, Act] = {**HARMLESS, "column": add_note}
"""What others do to a table without a change of its rows."""

HARMFUL: Mapping[str, Act] = {
    "delete": lambda table: table.delete("id > 1"),
    "update": lambda table: table.update(updates={"_lsn": "_lsn + 1"}),
    "insert": lambda table: write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append"),
    "merge": lambda table: (
        table.merge(pa.table({"k": [3]}), "id = one.k", source_alias="one", target_alias="hit")
        .when_matched_delete()
        .execute()
    ),
    "restore": lambda table: table.restore(0),
    "other columns": lambda table: write_deltalake(
        table, table.to_pyarrow_table().select(["id"]), mode="overwrite", schema_mode="overwrite"
    ),
    "append-only": lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
    "constraint": lambda table: table.alter.add_constraint({"positive": "id > -1"}),
    "row tracking": lambda table: table.alter.add_feature(
        TableFeatures.RowTracking, allow_protocol_versions_increase=True
    ),
    "lost": lambda table: shutil.rmtree(table.table_uri.removeprefix("file://")),
}
CHANGES: Mapping[str, Act] = {**HARMFUL, "older": cut_log, "hole": make_hole, "deep hole": make_deep_hole}
LOST = ("lost", "older", "hole", "deep hole")
"""Of which the version that the newest epoch names is gone."""

MOMENTS = ("between two batches", "between lookup and commit", "while it is stopped")


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

    def continue_with(self, act: Act, when: str, patch: pytest.MonkeyPatch, table: str = "hit") -> None:
        """Write some keys again, and run a batch of them; somebody acts on a table at one of `MOMENTS`."""
        path = str(self.path.parent / table)
        between_batches, between_lookup_and_commit, _ = MOMENTS
        if when == between_batches:
            with self.tables.writer() as (_, writer):
                act(DeltaTable(path))
                self.write(range(4, 9), 2)
                self.tables.batch(writer)
            return
        acted: list[object] = []

        def once(written: str, _opened: DeltaTable) -> None:
            if (written == table or table.startswith("_")) and not acted:
                acted.append(act(DeltaTable(path)))

        self.write(range(4, 9), 2)
        if when == between_lookup_and_commit:
            with disturbed(patch, once):
                self.tables.run()
            assert acted
        else:
            act(DeltaTable(path))
            self.tables.run()

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


IN_SUITE = [
    *(("delete", moment) for moment in MOMENTS),
    ("lost", MOMENTS[1]),
    ("older", MOMENTS[1]),
    ("deep hole", MOMENTS[2]),
    ("row tracking", MOMENTS[0]),
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


@pytest.mark.parametrize(
    ("change", "when"), partly_soaked(IN_SUITE, [c for c in product(CHANGES, MOMENTS) if c not in IN_SUITE])
)
def test_a_changed_table_is_set_aside_and_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, when: str
) -> None:
    two, problem = Two(tmp_path), "table_lost" if change in LOST else "table_changed"
    is_found_later = (change, when) == ("hole", MOMENTS[1])  # the commit that it is based on is there
    named = {problem} if is_found_later else {problem, "spaces_refused"}
    is_set_aside_and_rebuilt(two, CHANGES[change], when, monkeypatch, named)


def is_set_aside_and_rebuilt(
    two: Two,
    act: Act,
    when: str,
    patch: pytest.MonkeyPatch,
    named: AbstractSet[str] = frozenset({"table_changed", "spaces_refused"}),
) -> None:
    """Have somebody change the table `hit`, and walk the way out; `named` are the conditions until then."""
    two.tables.run()
    two.continue_with(act, when, patch)
    config = two.tables.config()
    problems = deployment_problems(config)
    assert {one.condition for one in problems if one.subject in ("table hit", "space hit")} == named
    assert {one.advice for one in problems if one.subject == "space hit"} <= {REBUILD}
    assert two.rows("other") == two.winners(OTHER)
    row = newest_epoch_row(location_of(config.warehouse))
    if "table_lost" not in named:
        kept = DeltaTable(str(two.path), version=dict(row["versions"])["hit"])
        ids = QueryBuilder().register("kept", kept).execute("SELECT id FROM kept ORDER BY id").read_all()
        assert pa.table(ids)["id"].to_pylist() == list(range(1, 9))
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


REBUILD = "`aggregator rebuild hit` (docs/foreign-changes.md)"
OWN_TABLES = ("_changelog", "_vclock", "_versions", "_schema", "_epochs", "_cluster", "_applier_map")
OWN_IN_SUITE = [("_cluster", MOMENTS[0]), ("_epochs", MOMENTS[0]), ("_vclock", MOMENTS[1])]


@pytest.mark.parametrize(
    ("table", "when"),
    partly_soaked(OWN_IN_SUITE, [c for c in product(OWN_TABLES, MOMENTS) if c not in OWN_IN_SUITE]),
)
def test_an_own_table_that_others_change_stops_the_job_until_it_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, when: str
) -> None:
    two = Two(tmp_path)
    two.tables.run()
    goes_on = {*product(("_schema", "_applier_map"), MOMENTS[:2]), ("_cluster", MOMENTS[1])}
    """A batch that does not write the table; the next start is refused."""
    refused = pytest.raises(ForeignChangeError, match=rf"table {table}")
    with nullcontext() if (table, when) in goes_on else refused:
        two.continue_with(lambda opened: opened.delete(), when, monkeypatch, table)
    with (
        pytest.raises(ForeignChangeError, match=rf"/{table}` TO VERSION AS OF \d+") as error,
        two.tables.writer(),
    ):
        pass
    DeltaTable(str(two.path.parent / table)).restore(int(str(error.value).rpartition(" ")[2]))
    two.write(range(7, 12), 3)
    two.tables.run()
    assert two.rows("hit") == two.winners(HIT)
    assert deployment_problems(two.tables.config()) == []


UNCHANGED_IN_SUITE = [("column", MOMENTS[1]), ("z-order", MOMENTS[0]), ("change data feed", MOMENTS[2])]


@pytest.mark.parametrize(
    ("change", "when"),
    partly_soaked(
        UNCHANGED_IN_SUITE, [c for c in product(UNCHANGED, MOMENTS) if c not in UNCHANGED_IN_SUITE]
    ),
)
def test_what_changes_no_rows_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, when: str
) -> None:
    makes_no_difference(Two(tmp_path), UNCHANGED[change], when, monkeypatch)


def makes_no_difference(two: Two, act: Act, when: str, patch: pytest.MonkeyPatch) -> None:
    """Have somebody do something to the table `hit` that changes no rows."""
    two.tables.run()
    two.continue_with(act, when, patch)
    two.write(range(7, 12), 3)
    two.tables.run()
    assert two.rows("hit") == two.winners(HIT)
    assert deployment_problems(two.tables.config()) == []


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


@pytest.mark.parametrize("change", ["delete", "constraint"])
def test_a_table_that_others_take_back_goes_on(tmp_path: Path, change: str) -> None:
    two = Two(tmp_path)
    two.tables.run()
    version = DeltaTable(str(two.path)).version()
    HARMFUL[change](DeltaTable(str(two.path)))
    assert deployment_problems(two.tables.config())
    if change == "delete":
        DeltaTable(str(two.path)).restore(version)
    else:
        DeltaTable(str(two.path)).alter.drop_constraint("positive")
    two.write(range(4, 9), 2)
    two.tables.run()
    assert two.rows("hit") == two.winners(HIT)
    assert deployment_problems(two.tables.config()) == []


@pytest.mark.parametrize("vectors", ["always", "never"])
def test_a_column_of_their_own_stays(tmp_path: Path, vectors: str) -> None:
    two = Two(tmp_path, deletion_vectors=vectors)
    two.tables.run()
    with two.tables.writer() as (_, writer):
        add_note(DeltaTable(str(two.path)))
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
