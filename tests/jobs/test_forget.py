"""`aggregator forget`: no file holds the key afterwards, wherever the command was stopped before."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from config.deployment import Config, Standby
from jobs.aggregate import configured_standbys
from jobs.forget import ForgetOptions, forget
from jobs.main import main
from pipeline.requests.beside import BesideTable
from schemas.errors import SpoolError
from schemas.tables import VALIDATIONS
from sources.spool.acks import LOCK_FILE
from sources.spool.rewrite import locked
from sources.spool.state import REWOUND_PREFIX
from sources.xlog.format.meta import REPLICASET_KEY
from sources.xlog.reader.plain_rows import decode_rows, read_blocks, read_meta
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment
from tests.sources.s3 import Store, installed
from warehouse.copies.primary import PrimaryLock
from warehouse.lock.lock import LOCK_NAME
from warehouse.system_tables import requests
from warehouse.system_tables.maintenance import retention_horizon
from warehouse.warehouse import Warehouse

S, OTHER = 512, 513
KEY, NEIGHBOUR = "ann@example.org", "bob@example.org"
FIELDS = (("mail", "string"), ("name", "string"), ("value", "integer"), ("updated", "unsigned"))


class Case:
    """Two replicasets that both write a key: one with a log directory of a server, one with a spool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        replicasets = replicasets_of("a1", "b1")
        self.a, self.b = Node(folder, "a1"), Node(folder, "b1")
        self.b.keys = {REPLICASET_KEY: replicasets["b1"]}
        (self.b.path / LOCK_FILE).touch()
        settings: dict[str, Any] = {
            "cache": {"path": str(folder / "copies")},
            "deletion_vectors": "always",
            "spaces": {"masks": {"people": {"updated": "drop"}}},
        }
        sources = {"a1": self.a.path, "b1": self.b.path}
        uuids = {"a1": replicasets["a1"]}
        self.deployment = Deployment(folder, sources, uuids, on_gap="hold", **settings)
        for node in (self.a, self.b):
            node.define(S, "people", FIELDS)
            for at, key in enumerate((KEY, NEIGHBOUR, *(f"{number}@example.com" for number in range(20)))):
                node.put(S, key, f"{key} of {node.path.name}", at, 1, at=at)
            node.close()
        self.deployment.run()
        self.a.update(S, KEY, ["=", 2, 7], at=50).update(S, KEY, ["+", 1, 7], at=50).put(
            S, KEY, "x", 8, 2, at=60
        )
        self.b.delete(S, KEY, at=70).put(S, KEY, "again", 9, 1, at=80)
        self.a.close()
        self.b.close()
        self.deployment.run()
        # Rows of the key that wait behind a hole.
        self.b._lsn += 1
        self.b._begins[-1] = self.b._lsn
        self.b.put(S, KEY, "waits", 11, 3, at=100).put(S, NEIGHBOUR, "waits", 11, 3, at=110).close()
        self.deployment.run()

    @property
    def config(self) -> Config:
        return self.deployment.config()

    def forget(self, *keys: str, step: Callable[[str], None] = lambda _: None, **options: Any) -> int:
        chosen = ForgetOptions("people", [[key] for key in keys or (KEY,)], **options)
        return forget(self.config, chosen, step)

    def grep(self, text: str = KEY) -> list[Path]:
        """Return the files of the deployment that have a text, decompressed."""
        folders = [self.folder / name for name in ("warehouse", "checkpoint", "copies", "b1")]
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return [path for path in files if text.encode() in contents(path)]

    def set_aside(self) -> Path:
        """Copy the spool into itself, as the daemon moves the files of one whose server has lost rows."""
        folder = self.b.path / f"{REWOUND_PREFIX}1"
        folder.mkdir()
        for path in [*self.b.path.glob("*.xlog")]:
            shutil.copy(path, folder)
        return folder


def contents(path: Path) -> bytes:
    """Return the bytes of a file, and for a log or a table's file all values in it."""
    data = path.read_bytes()
    if path.suffix == ".parquet":
        data += str(pq.read_table(path, partitioning=None).to_pylist()).encode()
    if path.suffix == ".xlog":
        with path.open("rb") as stream:
            meta = read_meta(stream, path.name)
            data += b"".join(block.rows for block in read_blocks(stream, meta.length, path.name))
    return data


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


TABLES = ("people", "_exact_people", "_changelog", "_versions", "_conflicts", "_quarantine", "_pending")


def tables_with(case: Case, text: str) -> set[str]:
    return {table for table in TABLES if text in str(case.deployment.rows(table))}


def test_nothing_is_left_of_a_key_and_all_of_its_neighbour(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tables_with(case, KEY) == set(TABLES)
    assert [*case.folder.rglob("deletion_vector_*.bin")]
    before = {table: str(case.deployment.rows(table)).count(NEIGHBOUR) for table in TABLES}
    assert case.forget(only_search=True) == 1
    assert f"{case.b.path}/00000000000000000000.xlog: has the bytes of a key" in capsys.readouterr().out
    assert case.forget(vacuum=True) == 0
    printed = capsys.readouterr().out
    assert "; 0 of them hold the keys" in printed
    assert f"source a1: {case.a.path} is not a spool: its logs and snapshots stay as they are" in printed
    assert tables_with(case, KEY) == set()
    assert {table: str(case.deployment.rows(table)).count(NEIGHBOUR) for table in TABLES} == before
    assert case.grep() == []
    assert case.grep(NEIGHBOUR)


def test_examples_of_validation_and_requests_with_the_key_go(case: Case) -> None:
    warehouse = Warehouse(None, case.config.warehouse, case.config.database)
    for key in (KEY, NEIGHBOUR):
        requests.record(warehouse, "backfill", {"source": "a1"}, f"the row of {key} is wrong")
        examples = {"space": "people", "expectation": "not null", "examples": f'[{{"mail": "{key}"}}]'}
        warehouse.create("_validations", VALIDATIONS)
        columns = pa.schema([(name, pa.string()) for name in examples])
        rows = pa.Table.from_pylist([examples], columns)
        write_deltalake(warehouse.location.uri("_validations"), rows, mode="append", schema_mode="merge")
    assert case.forget(vacuum=True) == 0
    for table in ("_requests", "_validations"):
        text = str(case.deployment.rows(table))
        assert (KEY in text, NEIGHBOUR in text) == (False, True)


def test_a_table_that_is_built_beside_goes(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    with case.deployment.writer() as (_, writer):
        BesideTable.of(writer.tables, writer.state, case.config, "people").bring_up()
    assert case.forget(only_search=True) == 1
    assert "aggregator__beside.db/people/part-" in capsys.readouterr().out
    assert case.forget(vacuum=True) == 0
    assert not [*case.folder.glob("warehouse/aggregator__beside.db/*/*")]


def test_rows_that_wait_become_nops_so_that_those_behind_them_are_settled(case: Case) -> None:
    case.forget()
    waiting = {row["type"] for row in case.deployment.rows("_pending")}
    assert waiting == {"NOP", "REPLACE"}
    case.b.put(S, KEY, "comes back", 12, 9, at=130).close()
    case.deployment.settings["on_gap"] = "skip"
    case.deployment.run()
    assert not case.deployment.rows("_pending")
    assert names(case) == {KEY: "comes back", NEIGHBOUR: "waits"}


def test_rows_that_were_not_read_yet_stay_and_are_named(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    path = case.b.put(S, KEY, "comes back", 12, 9, at=130).close()
    assert case.forget(vacuum=True) == 1
    assert f"{path}: has the bytes of a key" in capsys.readouterr().out
    assert case.grep() == [path]


def test_a_running_stream_goes_on_from_a_spool_that_was_written_again(case: Case) -> None:
    case.forget(vacuum=True)
    case.b.put(S, NEIGHBOUR, "newest", 12, 9, at=130).close()
    case.deployment.settings["on_gap"] = "skip"
    case.deployment.run()
    assert names(case) == {NEIGHBOUR: "newest"}
    assert [row for row in case.deployment.rows("_gaps") if row["kind"] == "divergence"] == []


def names(case: Case) -> dict[str, str]:
    rows = case.deployment.rows("people")
    return {row["mail"]: row["name"] for row in rows if row["mail"] in (KEY, NEIGHBOUR)}


class Stop(BaseException):
    """Ends the command, as a kill does."""


def test_it_goes_on_wherever_it_was_stopped(case: Case) -> None:
    case.set_aside()
    for number in range(1000):
        steps: list[str] = []

        def stop(step: str, number: int = number, steps: list[str] = steps) -> None:
            steps.append(step)
            if len(steps) > number:
                raise Stop

        try:
            result = case.forget(step=stop, vacuum=True)
        except Stop:
            continue
        break
    assert (result, case.grep()) == (0, [])
    assert number > 12


def test_what_earlier_versions_keep_is_said_with_its_date(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    assert case.forget() == 0
    text = r"\d+ more are files of earlier versions, which `aggregator maintain` removes from 20\d\d-\d\d-\d\d on"
    assert re.search(text, capsys.readouterr().out)
    assert case.grep()


def test_earlier_epochs_are_said_to_be_unreadable_after_vacuum(case: Case) -> None:
    location = Warehouse(None, case.config.warehouse, case.config.database).location
    first = retention_horizon(location)[1]
    case.forget(vacuum=True)
    newest = max(row["epoch"] for row in case.deployment.rows("_epochs"))
    assert (first, retention_horizon(location)[1]) == (0, newest)


def test_a_number_is_compared_by_rows_since_its_bytes_are_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path, "a1").define(S, "s").define(OTHER, "t")
    node.put(S, 7, "x", 1, 1).put(S, 8, "x", 7, 7).put(OTHER, 7, "y", 1, 1)
    made = Deployment.aggregated(tmp_path, node)
    file = tmp_path / "deployment.yaml"
    file.write_text(made.config().model_dump_json(exclude_defaults=True))
    assert main("forget", ["s", "7", "--config", str(file), "--vacuum"]) == 0
    assert "s: 1 rows were removed" in capsys.readouterr().out
    assert [row["id"] for row in made.rows("s")] == [8]
    assert [row["id"] for row in made.rows("t")] == [7]
    assert main("forget", ["s", "7", "--config", str(file), "--search"]) == 0
    assert main("forget", ["s", "8", "--config", str(file), "--search"]) == 1
    assert main("forget", ["s", "[8, 1]", "--config", str(file), "--search"]) == 2


def test_a_connected_standby_has_the_epoch_before_the_log_goes(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    node = Node(tmp_path, "a1").define(S, "s").put(S, 7, "x", 1, 1).put(S, 8, "x", 1, 1)
    made = Deployment.aggregated(tmp_path, node)
    config = made.config().model_copy(update={"standby": Standby(peers=(str(tmp_path / "copy"),))})
    copy = tmp_path / "copy" / "aggregator.db" / "s"
    with PrimaryLock(Warehouse(None, config.warehouse), "test", configured_standbys(config, waits=True)):
        pass
    assert DeltaTable(str(copy)).to_pyarrow_table(columns=["id"]).num_rows == 2
    assert forget(config, ForgetOptions("s", [[7]], vacuum=True)) == 0
    assert DeltaTable(str(copy)).to_pyarrow_table(columns=["id"])["id"].to_pylist() == [8]


def test_a_spool_keeps_its_lsns_and_its_other_rows(case: Case) -> None:
    def rows() -> list[tuple[int | None, str]]:
        found = []
        for path in sorted(case.b.path.glob("*.xlog")):
            with path.open("rb") as stream:
                meta = read_meta(stream, path.name)
                for block in read_blocks(stream, meta.length, path.name):
                    found += [(row.lsn, row.type) for row in decode_rows(block.rows, block.start, path.name)]
        return found

    before = rows()
    case.forget()
    after = rows()
    assert [lsn for lsn, _ in after] == [lsn for lsn, _ in before]
    changed = [(old, new) for (_, old), (_, new) in zip(before, after, strict=True) if old != new]
    assert changed == [(old, "NOP") for old in ("REPLACE", "DELETE", "REPLACE", "REPLACE")]


def test_spools_that_were_set_aside_lose_all_rows_of_the_key(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = case.set_aside()
    never_read = case.b.put(S, KEY, "lost by the server", 12, 9, at=130).close()
    never_read.rename(folder / never_read.name)
    assert case.forget(only_search=True) == 1
    assert f"{folder / never_read.name}: has the bytes of a key" in capsys.readouterr().out
    assert case.forget(vacuum=True) == 0
    assert (case.grep(), {path.parent for path in case.grep(NEIGHBOUR)} >= {folder}) == ([], True)


def test_a_folder_that_cannot_be_searched_is_named(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    far = case.config.model_copy(update={"checkpoint": "dbfs://lake/checkpoint"})
    assert forget(far, ForgetOptions("people", [["nobody@example.org"]], only_search=True)) == 1
    assert "dbfs://lake/checkpoint: not searched: " in capsys.readouterr().out


@pytest.mark.soak
@installed
def test_a_warehouse_and_a_checkpoint_on_a_store_are_searched_there(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        (case.folder / "warehouse" / "aggregator.db" / LOCK_NAME).unlink()
        store.put_tree(case.folder / "warehouse", "warehouse")
        far = {name: f"s3a://lake/{name}" for name in ("warehouse", "checkpoint")}
        config = case.config.model_copy(update=far)
        options = ForgetOptions("people", [[KEY]])
        assert forget(config, replace(options, only_search=True)) == 1
        assert "s3://lake/warehouse/aggregator.db/people/part-" in capsys.readouterr().out
        assert forget(config, options) == 0
        assert re.search(r"\n[1-9]\d* more are files of earlier versions", capsys.readouterr().out)
        assert forget(config, replace(options, vacuum=True)) == 0
        assert re.search(r"\n(\d+) files were searched, \d+ bytes; 0 of them", capsys.readouterr().out)
        store.get_tree("warehouse", case.folder / "warehouse")
        assert (case.grep(), bool(case.grep(NEIGHBOUR))) == ([], True)
        store.put(case.b.path, "checkpoint/of_somebody")
        assert forget(config, replace(options, only_search=True, keys=[[NEIGHBOUR]])) == 1
        assert "s3://lake/checkpoint/of_somebody/0" in capsys.readouterr().out


def test_a_spool_whose_daemon_runs_is_refused(case: Case) -> None:
    with locked(case.b.path), pytest.raises(SpoolError, match="another process writes the spool"):
        case.forget()


KILLED = """
import os, signal, sys
from config.deployment import load
from jobs.forget import ForgetOptions, forget

steps = []

def step(text):
    steps.append(text)
    if len(steps) > int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

sys.exit(forget(load(sys.argv[1]), ForgetOptions("people", [[sys.argv[3]]], vacuum=True), step))
"""


@pytest.mark.soak
def test_it_goes_on_after_a_kill_at_each_step(case: Case) -> None:
    case.set_aside()
    file = case.folder / "deployment.yaml"
    file.write_text(case.config.model_dump_json(exclude_defaults=True))
    codes: list[int] = []
    while not codes or codes[-1] == -signal.SIGKILL:
        words = [sys.executable, "-c", KILLED, str(file), str(len(codes)), KEY]
        codes.append(subprocess.run(words, check=False, capture_output=True).returncode)
    assert (codes[-1], case.grep(), tables_with(case, KEY)) == (0, [], set())
    assert len(codes) > 12
