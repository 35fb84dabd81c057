"""A writer that was overtaken commits to no table that counts: real Delta tables, two writers in one process."""

from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from pipeline.write.system_rows import append_rows
from schemas.errors import ForeignChangeError, LockError, RidStateError, WarehouseError
from warehouse.copies.primary import PrimaryLock
from warehouse.copies.switch import demote
from warehouse.delta.fence import SHARED_TABLES, marked_commit, newest_mark, take_writer_number, writer_of
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.delta.read import rows_of
from warehouse.system_tables import epochs
from warehouse.warehouse import Warehouse

EPOCH = {"epoch": 0, "query_id": "q", "batch_id": 0, "vclock": "{}", "versions": [], "writers": "{}"}


def always() -> None:
    """Hold the lock, or believe so."""


class Writers:
    """Writers of one warehouse, each with handles of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        Warehouse(None, str(folder)).create_system_tables()

    def start(self) -> Warehouse:
        """Return the warehouse of one more writer, rolled back."""
        warehouse = Warehouse(None, str(self.folder))
        warehouse.open_tables.fence = take_writer_number(warehouse.location, always)
        epochs.roll_back(warehouse, epochs.last(warehouse))
        return warehouse


@pytest.fixture
def writers(tmp_path: Path) -> Writers:
    return Writers(tmp_path)


def append(warehouse: Warehouse, table: str = "_gaps") -> int:
    return append_rows(warehouse.open_tables, table, [{"epoch": 0}])


def test_writers_count(writers: Writers) -> None:
    marks = [newest_mark(writers.start().opened(EPOCHS)) for _ in range(3)]
    assert [writer_of(mark) for mark in marks] == [1, 2, 3]


def test_an_overtaken_writer_commits_no_epoch(writers: Writers) -> None:
    one = writers.start()
    append(one)
    other = writers.start()
    with pytest.raises(LockError, match="writer 2 has committed to _epochs while this one, writer 1, runs"):
        append_rows(one.open_tables, EPOCHS, [EPOCH])
    assert epochs.last(other) is None


def test_an_overtaken_writer_that_looked_before_it_slept_commits_no_epoch(writers: Writers) -> None:
    one = writers.start()
    opened, fence = one.open_tables.open(EPOCHS), one.open_tables.fence
    assert fence is not None
    writers.start()
    with pytest.raises(CommitFailedError, match="Concurrent transaction"):
        opened.create_write_transaction(
            [], "append", opened.schema(), commit_properties=marked_commit(fence.next_mark())
        )


def test_what_an_overtaken_writer_leaves_is_neither_read_nor_built_upon(writers: Writers) -> None:
    one, other = writers.start(), writers.start()
    version = append(one)
    for use in (append, lambda warehouse: warehouse.opened("_gaps"), lambda w: w.open_tables.files("_gaps")):
        with pytest.raises(LockError, match="writer 1 has committed to _gaps while this one, writer 2, runs"):
            use(other)
    last = writers.start()
    assert last.version("_gaps") == version + 1, "it is restored"
    append(last)
    with pytest.raises(LockError, match="writer 3 has committed"):
        append(one)


def test_a_table_that_an_overtaken_writer_creates_is_no_base(writers: Writers) -> None:
    one, other = writers.start(), writers.start()
    schema = one.open_tables.columns("_gaps")
    one.create("users", schema)
    assert other.open_tables.files("users") == [], "an empty one is as good as another"
    last = writers.start()
    one.create("orders", schema)
    one.open_tables.set_properties("orders", {"k": "v"})
    with pytest.raises(LockError, match="writer 1 has committed to orders"):
        last.open_tables.open("orders")


def test_users_who_change_no_rows_are_no_obstacle(writers: Writers) -> None:
    one = writers.start()
    append(one)
    append(one)
    table = DeltaTable(one.location.uri("_gaps"))
    table.optimize.compact()
    table.alter.set_table_properties({"note": "compacted"}, raise_if_not_exists=False)
    assert append(one) == 5


def test_users_who_change_rows_are_named_until_they_take_it_back(writers: Writers) -> None:
    one = writers.start()
    version = append(one)
    rows = one.open_tables.open("_gaps").to_pyarrow_table()
    write_deltalake(one.location.uri("_gaps"), rows, mode="append")
    for _ in range(2):
        named = rf"version {version + 1}, WRITE.*changes rows.*version {version} "
        with pytest.raises(ForeignChangeError, match=named):
            append(one)
    DeltaTable(one.location.uri("_gaps")).restore(version)
    assert append(one) == version + 3


@pytest.mark.parametrize("table", ["_cluster", "_requests"])
def test_tables_that_others_write_are_theirs_as_well(writers: Writers, table: str) -> None:
    assert table in SHARED_TABLES
    one, _ = writers.start(), writers.start()
    Warehouse(None, str(writers.folder)).append_rows(table, [{}])
    one.append_rows(table, [{}])
    assert one.open_tables.version(table) == 2


def test_a_lost_answer_is_looked_up(writers: Writers) -> None:
    one = writers.start()

    def lost(opened: DeltaTable, properties: CommitProperties) -> None:
        opened.create_write_transaction([], "append", opened.schema(), commit_properties=properties)
        raise CommitFailedError("Concurrent transaction failed.")

    def refused(_opened: DeltaTable, _properties: CommitProperties) -> None:
        raise OSError("connection reset")

    assert one.open_tables.change("_gaps", lost) == 1
    with pytest.raises(WarehouseError, match="connection reset"):
        one.open_tables.change("_gaps", refused)
    assert append(one) == 2


def test_marks_are_looked_up_at_the_start_alone(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    one = writers.start()
    append(one)
    looked: list[DeltaTable] = []
    monkeypatch.setattr("warehouse.delta.fence.newest_mark", looked.append)
    for _ in range(3):
        append(one)
        one.opened("_gaps")
    assert looked == []


def test_each_commit_looks_at_the_lock(writers: Writers) -> None:
    one = writers.start()
    before = one.version("_gaps")

    def lost() -> None:
        raise LockError("the writer lock was lost")

    fence = one.open_tables.fence
    assert fence is not None
    fence.check_lock = lost
    for act in (append, lambda warehouse: warehouse.drop("_gaps")):
        with pytest.raises(LockError, match="was lost"):
            act(one)
    assert one.version("_gaps") == before


def test_a_table_that_was_removed_may_come_back(writers: Writers) -> None:
    one = writers.start()
    schema = one.open_tables.columns("_gaps")
    append(one)
    one.drop("_gaps")
    one.create("_gaps", schema)
    assert append(one) == 1


def test_a_demoted_warehouse_gets_no_epoch_of_a_writer_that_slept(writers: Writers) -> None:
    warehouse = Warehouse(None, str(writers.folder))
    with PrimaryLock(warehouse, "one"):
        pass
    sleeper = writers.start().open_tables
    demote(warehouse.location)
    with pytest.raises(LockError, match="writer 3 has committed to _epochs"):
        append_rows(sleeper, EPOCHS, [EPOCH])
    with pytest.raises(RidStateError), PrimaryLock(warehouse, "two"):
        pytest.fail("it is a secondary")


def test_a_lock_that_was_given_back_lets_nothing_be_committed(writers: Writers) -> None:
    warehouse = Warehouse(None, str(writers.folder))
    with PrimaryLock(warehouse, "one"):
        append(warehouse)
    with pytest.raises(LockError, match="was released"):
        append(warehouse)
    append(writers.start())
    assert len(rows_of(warehouse.opened("_gaps"))) == 1, "but it may be read"
