"""The incidents: what each does to the deployment, and by which conditions it must be told."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deltalake import DeltaTable

from schemas.conditions import Job
from tests.incidents.bench import Bench, replace_folder
from tests.incidents.deployment import ANSWER_SECONDS, STALE_SECONDS, await_true
from tests.incidents.machine import fill, make_room, read_only

BATCH_SECONDS = 6.0
"""`trigger`, and the time between two looks of the stream's watch at the tables."""

COMPARE_SECONDS = 60.0
"""The time between two comparisons of all tables by the stream's watch."""

SLACK_SECONDS = 10.0
"""Added to the limit of two intervals, for a busy machine."""

SILENT = frozenset({"source_stale", "subscribe_lag_high"})
"""What follows where nothing comes any more."""


@dataclass(frozen=True)
class Incident:
    """One incident, which lasts while the context of `lasting` does."""

    name: str
    lasting: Callable[[Bench], Iterator[None]]
    conditions: frozenset[str]
    """By which it must be told."""
    follow: frozenset[str]
    """By which it may be told as well, later."""
    setting: str
    """The interval by which it is noticed, as the configuration calls it."""
    seconds: float
    """That interval in the bench."""


INCIDENTS: list[Incident] = []
_SETTINGS = {
    "answer": ANSWER_SECONDS,
    "metrics.stale": STALE_SECONDS,
    "trigger": BATCH_SECONDS,
    "a look a minute": COMPARE_SECONDS,
    "at once": 1.0,
}


def _incident(
    name: str, conditions: str, setting: str, follow: str = ""
) -> Callable[[Callable[[Bench], Iterator[None]]], Callable[[Bench], Iterator[None]]]:
    def add(lasting: Callable[[Bench], Iterator[None]]) -> Callable[[Bench], Iterator[None]]:
        told, later = frozenset(conditions.split()), frozenset(follow.split())
        INCIDENTS.append(Incident(name, lasting, told, later | SILENT, setting, _SETTINGS[setting]))
        return lasting

    return add


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """Stop a process while the block runs."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def check_last_lines(bench: Bench, before: int, *words: str) -> None:
    """Check that each end of the stream, since its log was `before` long, was one line with a path and the reason."""
    said = bench.jobs.log(Job.STREAM)[before:]
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert errors, said
    for line in errors:
        assert str(bench.warehouse_disk) in line, line
        assert any(word in line for word in words), line
    assert "Traceback" not in said, said
    assert "panicked" not in said, said


UNFED = "subscribe_failed subscribe_peer_gone"


@_incident("the master is killed, its read-only replica is up", "subscribe_peer_gone", "answer")
def master_killed(bench: Bench) -> Iterator[None]:
    bench.pair.master.kill()
    yield
    bench.pair.master.start()


@_incident("the master is stopped, its read-only replica is up", "subscribe_peer_gone", "answer")
def master_stopped(bench: Bench) -> Iterator[None]:
    with stopped(bench.pair.master.pid):
        yield


@_incident("the master is read-only, nobody writes", "source_stale", "metrics.stale")
def master_read_only(bench: Bench) -> Iterator[None]:
    bench.pair.master.eval("box.cfg{read_only = true}")
    yield
    bench.pair.master.eval("box.cfg{read_only = false}")


@_incident("the password is wrong at all peers", UNFED, "answer")
def wrong_password(bench: Bench) -> Iterator[None]:
    bench.pair.master.eval("box.schema.user.passwd('replicator', 'another')")
    await_true(bench.pair.is_replicated, "replication")
    bench.pair.cut()
    yield
    bench.pair.master.eval("box.schema.user.passwd('replicator', 'right')")


@_incident("no right to replicate", UNFED, "answer")
def no_right(bench: Bench) -> Iterator[None]:
    bench.pair.master.eval("box.schema.user.revoke('replicator', 'replication')")
    await_true(bench.pair.is_replicated, "replication")
    bench.pair.cut()
    yield
    bench.pair.master.eval("box.session.su('admin', box.schema.user.grant, 'replicator', 'replication')")


@_incident("all servers are cut off", UNFED, "answer")
def partitioned(bench: Bench) -> Iterator[None]:
    for proxy in bench.pair.proxies:
        proxy.partition(True)
    yield
    for proxy in bench.pair.proxies:
        proxy.partition(False)


@_incident("the certificate of the servers has expired", UNFED, "answer")
def certificate_expired(bench: Bench) -> Iterator[None]:
    bench.use_certificate("expired")
    yield
    bench.use_certificate("sound")
    assert "certificate has expired" in bench.jobs.log(Job.DAEMON)


@_incident("the clock of a server is 20 s ahead", "clock_ahead", "trigger")
def clock_ahead(bench: Bench) -> Iterator[None]:
    bench.clock.set_ahead(20)
    yield
    bench.clock.set_ahead(0)


@_incident("the disk of the master is full", "source_stale", "metrics.stale")
def master_disk_full(bench: Bench) -> Iterator[None]:
    fill(bench.master_disk)
    bench.pair.master.eval(  # the server has taken some room for its log in advance
        "for _, text in ipairs({string.rep('x', 10000), 'x'}) do "
        "repeat until not pcall(box.space.t.replace, box.space.t, {1, text}) end"
    )
    yield
    make_room(bench.master_disk)


@_incident("the daemon is killed", "subscribe_down", "at once")
def daemon_killed(bench: Bench) -> Iterator[None]:
    bench.jobs.kill(Job.DAEMON)
    yield
    bench.jobs.start(Job.DAEMON)


@_incident("the daemon is stopped", "subscribe_down", "at once")
def daemon_stopped(bench: Bench) -> Iterator[None]:
    with stopped(bench.jobs.processes[Job.DAEMON].pid):
        yield


@_incident("the disk of the spool is full", "subscribe_spool_full subscribe_failed disk_full", "answer")
def spool_disk_full(bench: Bench) -> Iterator[None]:
    fill(bench.spool_disk)
    # The last page of the spool's log has room for some rows that are small, or get small by compression.
    bench.pair.master.eval("box.space.t:replace{1, require('digest').urandom(10000):hex()}")
    yield
    make_room(bench.spool_disk)


@_incident("the stream is killed", "down", "at once")
def stream_killed(bench: Bench) -> Iterator[None]:
    bench.jobs.kill(Job.STREAM)
    yield
    bench.jobs.start(Job.STREAM)


@_incident("the stream is stopped", "down", "at once")
def stream_stopped(bench: Bench) -> Iterator[None]:
    with stopped(bench.jobs.processes[Job.STREAM].pid):
        yield


@_incident("the stream's reader is stopped", "reader_hung source_stale", "metrics.stale")
def reader_stopped(bench: Bench) -> Iterator[None]:
    with stopped(bench.jobs.below(Job.STREAM, "python_streaming_source_runner")):
        yield
    assert "[reader_hung, page" in bench.jobs.log(Job.STREAM)
    await_true(lambda: "reader_hung is over" in bench.jobs.log(Job.STREAM), "its end in the log")


@_incident("the stream's Java is killed", "down", "at once")
def java_killed(bench: Bench) -> Iterator[None]:
    os.kill(bench.jobs.below(Job.STREAM, "java"), signal.SIGKILL)
    await_true(lambda: bench.jobs.has_ended(Job.STREAM), "the end of the stream")
    yield
    bench.jobs.restart(Job.STREAM)


@_incident("the disk of the warehouse is full", "disk_full", "at once", follow="down")
def warehouse_disk_full(bench: Bench) -> Iterator[None]:
    before = len(bench.jobs.log(Job.STREAM))
    fill(bench.warehouse_disk)
    yield
    await_true(lambda: bench.jobs.has_ended(Job.STREAM), "the end of the stream")
    bench.jobs.start(Job.STREAM)
    await_true(lambda: bench.jobs.has_ended(Job.STREAM), "the end of another start")
    make_room(bench.warehouse_disk)
    bench.jobs.restart(Job.STREAM)
    check_last_lines(bench, before, "no room")


@_incident("the warehouse cannot be written", "down", "trigger")
def warehouse_read_only(bench: Bench) -> Iterator[None]:
    before = len(bench.jobs.log(Job.STREAM))
    with read_only(bench.warehouse_disk / "warehouse"):
        await_true(lambda: bench.jobs.has_ended(Job.STREAM), "the end of the stream")
        yield
    bench.jobs.restart(Job.STREAM)
    check_last_lines(bench, before, "read-only", "Read-only")


@_incident("a value that its column cannot hold", "misfits", "trigger")
def misfit(bench: Bench) -> Iterator[None]:
    bench.pair.master.eval("box.space.names:replace{1, '\\xff\\xfe'}")
    yield
    bench.pair.master.eval("box.space.names:replace{1, 'mended'}")


@_incident("a row that is set aside", "rows_set_aside", "trigger")
def set_aside(bench: Bench) -> Iterator[None]:
    bench.pair.master.eval("box.space.strict:replace{1, '\\xff\\xfe'}")
    yield
    bench.pair.master.eval("box.space.strict:replace{1, 'mended'}")


@_incident("a space with another type in another replicaset", "spaces_refused", "trigger")
def refused(bench: Bench) -> Iterator[None]:
    server = bench.second.server
    server.eval(
        "box.schema.space.create('names', {format = {{'id', 'string'}, {'name', 'string'}}})"
        ":create_index('pk', {parts = {{1, 'string'}}}) box.space.names:replace{'one', 'two'}"
    )
    yield
    server.eval("box.space.names:drop()")


@_incident("a log is missing", "gap_open rows_waiting", "trigger")
def gap(bench: Bench) -> Iterator[None]:
    second = bench.second
    second.server.eval("box.snapshot()")
    with second.lock:
        second.server.eval("box.space.u:replace{2, 'held back'}")
        second.held_back.add(second.newest_log())
    second.server.eval("box.snapshot()")
    yield
    second.held_back.clear()
    second.copy()
    ended = bench.jobs.command("repair")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@_incident("a synchronous transaction without a quorum", "rows_waiting", "trigger")
def pending(bench: Bench) -> Iterator[None]:
    server = bench.second.server
    server.eval(
        "box.cfg{replication_synchro_quorum = 2, replication_synchro_timeout = 1000} "
        "require('fiber').create(function() box.space.ledger:replace{1} end)"
    )
    yield
    server.eval("box.cfg{replication_synchro_quorum = 1}")


@_incident("a server has lost its newest rows and writes others", "divergence", "trigger")
def divergence(bench: Bench) -> Iterator[None]:
    second = bench.second
    bench.is_second_written = False
    second.server.kill()
    second.copy()
    kept = bench.folder / "kept"
    shutil.copytree(second.server.directory, kept)
    second.server.start()
    for number in range(5):
        second.server.eval("box.space.u:replace{..., 'lost'}", 10 + number)
    second.server.kill()
    second.copy()
    await_true(lambda: bench.jobs.unread().get("b") == 0, "the batch")
    replace_folder(second.server.directory, kept)
    second.server.start()
    for number in range(9):
        second.server.eval("box.space.u:replace{..., 'others'}", 20 + number)
    with second.lock:
        for file in second.server.directory.glob("*.xlog"):
            shutil.copy(file, second.folder)
    bench.is_second_written = True
    yield
    second.server.eval("box.snapshot()")
    for file in second.server.directory.glob("*.snap"):
        shutil.copy(file, second.folder)
    second.copy()
    ended = bench.jobs.command("heal", "b")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shutil.rmtree(kept)


@_incident("somebody else deletes rows of a table", "table_changed", "a look a minute")
def foreign_commit(bench: Bench) -> Iterator[None]:
    DeltaTable(str(bench.table("names"))).delete("id = 2")
    yield
    ended = bench.jobs.command("rebuild", "names")
    assert ended.returncode == 0, ended.stdout + ended.stderr
