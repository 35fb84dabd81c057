"""The writer of the stream, killed before and after each write: what it ends with is what the tables hold."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pyarrow.fs
import pytest
from deltalake import DeltaTable

from pipeline.replication_out.stream import Stream
from pipeline.replication_out.writer import ReplicationWriter
from sources.spool import state as spool_state
from sources.spool.spool import Spool
from sources.xlog.reader import reader
from tests.pipeline.replication_out.world import READERS, World, world

pytestmark = pytest.mark.live

FILES = pyarrow.fs.LocalFileSystem()
SMALL = 4
"""Rows of a transaction: the epoch takes several."""

BEFORE = """
    for i = 1, 12 do box.space.accounts:insert{i, box.info.uuid:sub(1, 1) .. i, i} end
    for _, name in ipairs{'goes', 'rekeyed', 'stays'} do
        box.schema.space.create(name):create_index('pk', {parts = {1, 'unsigned'}})
        for i = 1, 3 do box.space[name]:insert{i, 'x' .. i} end
    end
"""
AFTER = """
    for i = 1, 6 do box.space.accounts:delete(i) end
    for i = 13, 20 do box.space.accounts:insert{i, box.info.uuid:sub(1, 1) .. i, i} end
    box.space.accounts.index.name:drop()
    box.space.accounts:create_index('balance', {parts = {{'balance', is_nullable = true}}, unique = false})
    box.space.accounts:format({{'id', 'unsigned'}, {'title', 'string'}, {'balance', 'number', is_nullable = true}})
    box.space.goes:drop()
    box.space.rekeyed.index.pk:alter{parts = {2, 'string'}}
    box.schema.space.create('comes'):create_index('pk')
    for i = 1, 9 do box.space.comes:insert{i} end
"""
SPACES = ("accounts", "rekeyed", "stays", "comes")


class Killed(BaseException):
    """The process ends here."""


def killed_at(step: int, *, is_written: bool) -> Callable[..., None]:
    """Return an append that ends the process before or after its n-th call."""
    calls = 0
    append = Spool.append

    def act(spool: Spool, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == step and not is_written:
            raise Killed
        append(spool, *arguments)
        if calls == step:
            raise Killed

    return act


def run(directory: Path, two: World, *, is_killed: bool = False) -> None:
    """Bring a stream to the newest epoch; a killed writer writes nothing at its end."""
    stream = Stream(directory)
    stream.__enter__()
    try:
        writer = ReplicationWriter(two.warehouse, stream, READERS, transaction_rows=SMALL)
        while writer.advance():
            pass
    except Killed:
        assert is_killed
        stream.spool.abandon()
        return
    stream.__exit__(None, None, None)


def replayed(directory: Path) -> tuple[dict[str, list[bytes]], dict[int, int]]:
    """Return the tuples by space and the vclock of who reads the newest snapshot and the logs behind it."""
    snapshot = spool_state.spool_files(directory, ".snap")[-1]
    vclock = dict(snapshot.meta.vclock)
    rows: dict[int, dict[bytes, bytes]] = {}
    parts: dict[int, list[int]] = {}
    logs = spool_state.spool_files(directory, ".xlog")
    for file in (snapshot, *logs):
        for batch in reader.read_rows(FILES, str(file.path)):
            for row in batch.to_pylist():
                if file is not snapshot:
                    if row["lsn"] <= vclock.get(row["replica_id"], 0):
                        continue
                    assert row["lsn"] == vclock.get(row["replica_id"], 0) + 1
                    vclock[row["replica_id"]] = row["lsn"]
                apply(rows, parts, row)
    names = {key: msgpack.unpackb(tuple_)[2] for key, tuple_ in rows[280].items()}
    found = {name: sorted(rows.get(msgpack.unpackb(key)[0], {}).values()) for key, name in names.items()}
    return found, vclock


def apply(rows: dict[int, dict[bytes, bytes]], parts: dict[int, list[int]], row: dict[str, Any]) -> None:
    space = row["space_id"]
    if space is None:
        return
    system = {280: [0], 288: [0, 1], 304: [0], 312: [1, 2, 3]}
    fields = system.get(space) or parts.get(space) or [0]
    if row["type"] == "DELETE":
        assert rows[space].pop(row["key"], None) is not None or space > 511
        if space == 280:
            rows.pop(msgpack.unpackb(row["key"])[0], None)
        return
    values = msgpack.unpackb(row["tuple"], strict_map_key=False)
    rows.setdefault(space, {})[msgpack.packb([values[i] for i in fields])] = row["tuple"]
    if space == 288 and values[1] == 0:
        parts[values[0]] = [p["field"] if isinstance(p, dict) else p[0] for p in values[5]]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as found:
        for name in "ab":
            found.eval(name, BEFORE)
        found.settle()
        run(tmp_path / "before", found)
        for name in "ab":
            found.eval(name, AFTER)
        found.settle()
        yield found


def check(two: World, directory: Path) -> None:
    tuples, vclock = replayed(directory)
    for space in SPACES:
        assert tuples[space] == sorted(two.deployment.tuples(space)), space
    assert "goes" not in tuples
    ids = two.global_ids()
    assert {name: vclock[ids[name]] for name in "ab"} == {n: two.eval(n, "return box.info.lsn") for n in "ab"}


def steps_of(two: World, directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many writes lead a copy of a stream to the newest epoch."""
    count, append = 0, Spool.append

    def counted(spool: Spool, *arguments: Any) -> None:
        nonlocal count
        count += 1
        append(spool, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "append", counted)
        run(directory, two)
    return count


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_at_each_step(two: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    shutil.copytree(tmp_path / "before", tmp_path / "counted")
    steps = steps_of(two, tmp_path / "counted", monkeypatch)
    assert steps > 20
    for step in range(1, steps + 1, every):
        for is_written in (False, True):
            directory = tmp_path / f"{step}-{is_written}"
            shutil.copytree(tmp_path / "before", directory)
            with monkeypatch.context() as patch:
                patch.setattr(Spool, "append", killed_at(step, is_written=is_written))
                run(directory, two, is_killed=True)
                patch.setattr(Spool, "append", killed_at(2, is_written=is_written))
                run(directory, two, is_killed=True)
            run(directory, two)
            check(two, directory)


def test_rolled_back_while_subscribers_get_it(
    two: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "before"
    write = Stream.write_with_epoch

    def killed(stream: Stream, *arguments: Any) -> None:
        write(stream, *arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "write_with_epoch", killed)
        run(directory, two, is_killed=True)
    with Stream(directory) as stream:
        assert stream.served is not None
        assert stream.served.progress is not None
    # Version 1 is the writer's number, version 2 the first epoch.
    DeltaTable(str(tmp_path / "warehouse" / "aggregator.db" / "_epochs")).restore(2)
    run(directory, two)
    tuples, _ = replayed(directory)
    assert len(tuples["goes"]) == 3
    assert len(tuples["accounts"]) == 12


def test_a_log_after_a_snapshot_that_was_not_adopted(
    two: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is killed between a new snapshot and its next log continues in the log before."""
    directory = tmp_path / "before"
    run(directory, two)
    with Stream(directory) as stream:
        writer = ReplicationWriter(two.warehouse, stream, READERS)
        with monkeypatch.context() as patch:
            patch.setattr(stream.spool, "continue_from", lambda _: None)
            writer._write_newer_snapshot()
        stream.spool.abandon()
    two.eval("a", "box.space.stays:replace{1, 'late'} box.schema.space.create('late'):create_index('pk')")
    two.settle()
    run(directory, two)
    check(two, directory)
    with Stream(directory) as stream:
        assert stream.served is not None
        assert "late" in stream.served.spaces


def test_logs_go_when_a_snapshot_stands_for_them(
    two: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.replication_out.stream.NEW_SNAPSHOT_BYTES", 0)
    directory = tmp_path / "before"
    before = {path.name for path in directory.glob("*.[sx]*")}
    run(directory, two)
    two.eval("a", f"for i = 1, 2000 do box.space.stays:replace{{i, '{'x' * 100}' .. i}} end")
    two.settle()
    run(directory, two)
    after = {path.name for path in directory.glob("*.[sx]*")}
    assert not before & after
    check(two, directory)


def test_an_epoch_of_more_bytes_than_a_block(two: World, tmp_path: Path) -> None:
    """It takes several transactions, as one of very many rows does."""
    two.eval("a", "for i = 1, 50 do box.space.stays:replace{i, string.rep('x', 10000) .. i} end")
    two.settle()
    directory, limit = tmp_path / "before", 200_000
    with Stream(directory, limit) as stream:
        writer = ReplicationWriter(two.warehouse, stream, READERS)
        while writer.advance():
            pass
    check(two, directory)
