"""One history of epochs, whatever two writers do, whenever they sleep, and whatever store and clocks do meanwhile."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from tests.warehouse.fencing.explorer import Explorer, Program, Trouble, run_alone
from tests.warehouse.fencing.model import (
    Ask,
    Commit,
    ModelLease,
    ModelPlace,
    ModelTable,
    Request,
    World,
    read_model_commit,
    read_model_log,
    rows_at,
)
from warehouse.delta import fence as fencing
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import DataFile
from warehouse.delta.fence import Fence
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.delta.write import AGGREGATOR_COMMIT
from warehouse.lock.lease import Lease
from warehouse.system_tables.epochs import Epoch, roll_back
from warehouse.warehouse import Warehouse

SPACES = ("first", "second")
START = World((("_epochs", (Commit(),)), ("first", (Commit(),))))
"""`second` is created by the first batch."""


def file(table: str, text: str) -> DataFile:
    """Return a file whose path is its one row."""
    return DataFile(table, text, 1, 1, "{}")


def last_of(log_rows: tuple[str, ...]) -> Epoch | None:
    found = [json.loads(row) for row in log_rows]
    newest = max(found, key=lambda row: int(row["epoch"]), default=None)
    return None if newest is None else Epoch(newest["epoch"], "", 0, {}, newest["versions"], {}, None)


@dataclass(frozen=True)
class Job:
    """A writer as the jobs are: takes the lock and a number, rolls back, reads, and does batches.

    Each batch adds its number as a row to each table.
    """

    batches: int = 1

    def __call__(self, ask: Ask, name: str) -> None:
        lease = Lease(ModelLease(ask), {"purpose": name}, "", clock=lambda: float(ask(Request("clock"))))
        lease._id = name
        lease.take()
        model = ModelPlace(ask)
        location = cast("WarehouseLocation", model)
        fence = fencing.take_writer_number(location, lease.check)
        tables = OpenTables(location, fence, put=model.put)
        warehouse = cast("Warehouse", SimpleNamespace(open_tables=tables, tables=model.tables))
        epoch = self._last(tables)
        roll_back(warehouse, epoch)
        versions = {} if epoch is None else dict(epoch.versions)
        number = -1 if epoch is None else epoch.epoch
        for _ in range(self.batches):
            number += 1
            for table in SPACES:
                if table not in versions and table != "first":
                    model.make(table)
                # What the state was built from.
                held = [int(row) for row in self._rows(tables, table)]
                assert held == list(range(number)), f"{table} has {held} before batch {number}"
                versions[table] = tables.commit(table, [file(table, str(number))])
            row = json.dumps({"epoch": number, "versions": versions})
            tables.commit(EPOCHS, [file(EPOCHS, row)])
        lease.release()

    def _last(self, tables: OpenTables) -> Epoch | None:
        return last_of(self._rows(tables, EPOCHS))

    def _rows(self, tables: OpenTables, table: str) -> tuple[str, ...]:
        return cast("ModelTable", tables.open(table)).rows()


def check_history(world: World) -> None:
    """Each epoch once, none missing, and each names versions with the row of each batch up to it, once."""
    log = world.log(EPOCHS)
    rows = [json.loads(row) for row in rows_at(log, len(log) - 1)]
    assert [row["epoch"] for row in rows] == list(range(len(rows))), "epochs"
    for row in rows:
        for table, version in row["versions"].items():
            held = [int(one) for one in rows_at(world.log(table), version)]
            assert held == list(range(row["epoch"] + 1)), f"{table} at {version} has {held} in {row}"


def checked(program: Program) -> Callable[[World], None]:
    """Return the check of a state: one history, and who starts alone continues it."""

    def check(world: World) -> None:
        check_history(world)
        before = len(rows_at(world.log(EPOCHS), len(world.log(EPOCHS)) - 1))
        after = run_alone(world, program, "the next one")
        check_history(after)
        log = after.log(EPOCHS)
        assert len(rows_at(log, len(log) - 1)) > before, "the next writer does nothing"

    return check


@pytest.fixture(autouse=True)
def model_creates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `_epochs` created in the model, in which nobody but writers commits."""
    monkeypatch.setattr("warehouse.delta.write.create", lambda model, table, _schema: model.make(table))
    monkeypatch.setattr("warehouse.delta.commits.refuse_foreign_changes", lambda *_: None)
    for module in (
        *("system_tables.table_differences", "system_tables.epochs"),
        *("delta.foreign_changes", "delta.restoration"),
    ):
        monkeypatch.setattr(f"warehouse.{module}.read_commit", read_model_commit)
    monkeypatch.setattr("warehouse.delta.restoration.read_log", read_model_log)


def explored(trouble: Trouble, batches: int = 1) -> Explorer:
    explorer = Explorer(Job(batches), checked(Job()))
    explorer.explore(START, 2, trouble)
    return explorer


FENCED = "has committed to"
"""What a writer says that another has overtaken."""


@pytest.mark.parametrize(
    ("trouble", "batches"),
    [
        pytest.param(Trouble(jumps=1), 1, id="a jump"),
        pytest.param(Trouble(errors=1), 1, id="an error"),
        pytest.param(Trouble(jumps=2), 2, id="jumps", marks=pytest.mark.soak),
        pytest.param(Trouble(jumps=1, errors=1), 1, id="a jump and an error", marks=pytest.mark.soak),
        pytest.param(Trouble(jumps=1, kills=1, starts=1), 1, id="a kill", marks=pytest.mark.soak),
        pytest.param(Trouble(jumps=1, starts=1), 2, id="a start", marks=pytest.mark.soak),
        pytest.param(Trouble(errors=2), 1, id="errors", marks=pytest.mark.soak),
    ],
)
def test_there_is_one_history(trouble: Trouble, batches: int) -> None:
    explorer = explored(trouble, batches)
    longest = max(len(rows_at(log, len(log) - 1)) for log in (one.log(EPOCHS) for one in explorer.worlds))
    assert longest == (2 + trouble.starts) * batches
    assert any(FENCED in end for end in explorer.ends) is bool(trouble.jumps)


def test_while_clocks_are_right_the_lease_alone_keeps_writers_apart() -> None:
    explorer = explored(Trouble(kills=1, starts=1))
    assert not [end for end in explorer.ends if FENCED in end or "Concurrent" in end]
    assert any("is being written by" in end for end in explorer.ends)


def without_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warehouse.delta.commits.marked_commit", lambda _mark: AGGREGATOR_COMMIT)
    monkeypatch.setattr("warehouse.delta.commits.transaction", lambda *_: {"commitInfo": {}})
    monkeypatch.setattr(Fence, "check", lambda *_: None)


def without_a_look_at_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fence, "check", lambda *_: None)


def without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "take_writer_number", lambda _place, check_lock: Fence(1, check_lock))


@pytest.mark.parametrize("broken", [without_a_fence, without_a_look_at_marks, without_numbers])
def test_each_part_is_needed(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=r"epochs|before batch| has \["):
        explored(Trouble(jumps=1))
