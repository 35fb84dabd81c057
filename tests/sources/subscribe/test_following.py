"""The daemon against real masters: all rows, each once, whatever fails."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from schemas.errors import RewindError
from sources.spool.acks import ask_for_snapshot, is_snapshot_asked
from sources.spool.spool import Spool
from sources.subscribe.daemon import replicaset_status
from sources.subscribe.options import FeedMode, SpoolStart
from sources.subscribe.replicaset import ReplicasetSubscription
from tests.live.mesh import REPLICASET, SPACE, Mesh, instance_uuid, mesh
from tests.live.proxy import Proxy
from tests.live.server import release_here
from tests.live.spools import read_spool, recovered_server, tuples_of
from tests.sources.subscribe.following import await_until, following, options

pytestmark = pytest.mark.live

STRIDE = int(os.environ.get("SOAK_STRIDE", "7"))
"""Distance in bytes between two cuts of a snapshot, after its first `SHORT` bytes; with 1 it takes over 25 minutes."""

SHORT = 1000
"""More bytes than the handshakes and the stream have in the test that cuts a connection at every byte."""


def write(masters: Mesh, number: int, first: int, count: int, value: str = "x") -> None:
    masters[number].eval(
        """
        local first, count, value = ...
        box.begin()
        for i = first, first + count - 1 do
            box.space.load:replace{i, value}
            if i % 10 == 0 then box.commit() box.begin() end
        end
        box.commit()
        """,
        first,
        count,
        value,
    )


def await_all(masters: Mesh, replicaset: ReplicasetSubscription) -> None:
    """Wait until the spool has all rows of the masters."""
    expected = {n: masters.vclock(n)[n] for n in masters.members if masters.vclock(n).get(n)}
    await_until(lambda: all(masters.vclock(n) == expected for n in masters.members), "replication")
    try:
        await_until(lambda: replicaset.spool.vclock == expected, f"the spool's {expected}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {replicaset_status(replicaset)}") from None


CONSUMERS = """
    local names = {}
    for _, one in ipairs(box.info.gc().consumers) do table.insert(names, one.name) end
    table.sort(names)
    return names
"""
DROP_RETAINED_LOGS = """
    if box.ctl.replica_gc == nil then return true end
    pcall(box.ctl.replica_gc, ...)
    return box.space._gc_consumers:get{...} == nil
"""
"""From 3.3 on a server retains logs for a disconnected daemon; it refuses to drop those of a connected one."""


def drop_retained_logs(masters: Mesh, number: int, uuid: str | None) -> None:
    """Make a master drop the logs that it retains for a daemon that has just ended."""
    await_until(
        lambda: masters[number].eval(DROP_RETAINED_LOGS, uuid) is True, "the end of the daemon's stream"
    )


def check(masters: Mesh, spool: Path) -> None:
    rows, faults, tuples = read_spool(masters[1], spool)
    assert faults == []
    assert tuples == tuples_of(masters[1])
    assert rows > 0


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[Mesh]:
    with mesh(tmp_path) as found:
        yield found


def addresses(masters: Mesh) -> list[str]:
    return [f"unix/:{server.socket}" for server in masters.members.values()]


@pytest.mark.parametrize("feed", list(FeedMode))
def test_rows_of_three_masters_come_once(masters: Mesh, tmp_path: Path, feed: FeedMode) -> None:
    spool = tmp_path / "spool"
    write(masters, 1, 0, 50)
    with following(options(spool, *addresses(masters), feed=feed)) as replicaset:
        await_until(lambda: bool(replicaset.feeds), "a stream")
        for k in range(9):
            write(masters, k % 3 + 1, 100 * k, 100, f"v{k}")
        await_all(masters, replicaset)
        assert replicaset.progress.repeated_rows == 0
        given = {feed.link.uuid: feed.ids for feed in replicaset.feeds.values()}
        assert all("UNKNOWN_REQUEST" not in server.log.read_text() for server in masters.members.values())
        if feed is FeedMode.OWN_PEER:
            await_until(lambda: len(replicaset.feeds) == 3)
            given = {feed.link.uuid: feed.ids for feed in replicaset.feeds.values()}
            assert given == {instance_uuid(n): frozenset({n}) for n in (1, 2, 3)}
        else:
            assert list(given.values()) == [None]
    check(masters, spool)
    with recovered_server(spool, tmp_path / "recovered") as server:
        assert tuples_of(server) == tuples_of(masters[1])


def test_no_master_registers_the_daemon(masters: Mesh, tmp_path: Path) -> None:
    before = masters[1].eval("return box.space._cluster:select()")
    with following(options(tmp_path / "spool", *addresses(masters))) as replicaset:
        write(masters, 1, 0, 10)
        await_all(masters, replicaset)
        assert masters[1].eval("return box.space._cluster:select()") == before
        of_daemon = f"replica {replicaset.spool.instance_uuid}"

        def readers(n: int) -> set[str]:
            return set(masters[n].eval(CONSUMERS))

        others = {n: {f"replica {instance_uuid(one)}" for one in {1, 2, 3} - {n}} for n in (1, 2, 3)}
        await_until(lambda: all(readers(n) >= others[n] for n in others), "the masters' own streams")
        assert {n: readers(n) - {of_daemon} for n in others} == others
        # From 3.3 on the master that feeds it keeps its logs for it; any of them may be the one.
        keeps = [n for n in (1, 2, 3) if of_daemon in readers(n)]
        assert bool(keeps) is (release_here() >= (3, 3))


def test_an_id_that_is_assigned_to_another_instance_is_noticed(masters: Mesh, tmp_path: Path) -> None:
    """An expulsion and a registration between two votes: the ids in the vclock stay the same."""
    new_instance = "f0000000-0000-4000-8000-000000000003"
    with following(
        options(tmp_path / "spool", *addresses(masters), origins=(instance_uuid(1), instance_uuid(2)))
    ) as replicaset:
        write(masters, 3, 0, 1)
        await_until(lambda: bool(replicaset.chooser.owners), "a choice")
        assert replicaset.chooser.owners == {n: instance_uuid(n) for n in (1, 2, 3)}
        masters[1].eval("box.space._cluster:delete(2) box.space._cluster:insert({2, ...})", new_instance)
        now = {1: instance_uuid(1), 2: new_instance, 3: instance_uuid(3)}
        await_until(lambda: replicaset.chooser.owners == now, "the new owners")
        await_until(lambda: replicaset._whitelist.owners == now, "whose rows are kept")


@pytest.mark.parametrize("feed", list(FeedMode))
def test_a_restart_needs_only_the_spool(masters: Mesh, tmp_path: Path, feed: FeedMode) -> None:
    how = options(tmp_path / "spool", *addresses(masters), feed=feed)
    uuids = set()
    for k in range(3):
        with following(how) as replicaset:
            write(masters, k + 1, 100 * k, 100)
            await_all(masters, replicaset)
            assert replicaset.progress.fetched_snapshots == (1 if k == 0 else 0)
            uuids.add(replicaset.spool.instance_uuid)
        write(masters, 3 - k, 1000 + 100 * k, 50)
    with following(how) as replicaset:
        await_all(masters, replicaset)
    check(masters, tmp_path / "spool")
    assert len(uuids) == 1


@pytest.mark.parametrize("feed", list(FeedMode))
def test_a_frozen_peer_is_replaced_and_comes_back(masters: Mesh, tmp_path: Path, feed: FeedMode) -> None:
    with following(options(tmp_path / "spool", *addresses(masters), feed=feed)) as replicaset:
        write(masters, 1, 0, 10)
        await_all(masters, replicaset)
        own = feed is FeedMode.OWN_PEER
        await_until(lambda: len(replicaset.feeds) == (3 if own else 1))
        leader = next(iter(replicaset.feeds))
        frozen = 2 if own else next(n for n in (1, 2, 3) if instance_uuid(n) == leader)
        others = [n for n in (1, 2, 3) if n != frozen]
        write(masters, frozen, 500, 10)
        await_all(masters, replicaset)
        masters.signal(frozen, signal.SIGSTOP)
        try:
            write(masters, others[0], 100, 20)
            await_until(lambda: instance_uuid(frozen) not in replicaset.feeds, "the loss of a peer")
            write(masters, others[1], 200, 20)
            expected = {n: masters.vclock(n)[n] for n in others}
            await_until(
                lambda: expected.items() <= (replicaset.spool.vclock or {}).items(), "rows of the others"
            )
            if own:
                fed = [feed.ids for feed in replicaset.feeds.values()]
                assert sorted(i for ids in fed for i in ids or ()) == [1, 2, 3]
        finally:
            masters.signal(frozen, signal.SIGCONT)
        write(masters, frozen, 300, 20)
        await_all(masters, replicaset)
        if own:
            await_until(lambda: len(replicaset.feeds) == 3, "the way back")
            given = {feed.link.uuid: feed.ids for feed in replicaset.feeds.values()}
            assert given == {instance_uuid(n): frozenset({n}) for n in (1, 2, 3)}
    check(masters, tmp_path / "spool")


def test_a_new_spool_begins_at_a_configured_vclock_without_a_snapshot(masters: Mesh, tmp_path: Path) -> None:
    how = options(tmp_path / "spool", *addresses(masters))
    write(masters, 1, 0, 50)
    write(masters, 2, 100, 50)
    await_until(lambda: masters.vclock(1) == masters.vclock(2))
    settled = masters.vclock(1)
    write(masters, 3, 200, 30)
    with following(how, SpoolStart(REPLICASET, settled)) as replicaset:
        await_all(masters, replicaset)
        assert replicaset.progress.fetched_snapshots == 0
    rows, faults, _ = read_spool(masters[1], tmp_path / "spool")
    assert (rows, faults) == (sum(masters.vclock(1).values()) - sum(settled.values()), [])


@pytest.mark.parametrize("kept", [True, False])
def test_a_spool_of_another_replicaset_is_refused(masters: Mesh, tmp_path: Path, kept: bool) -> None:
    """After a restart, the daemon knows the replicaset from the spool's files."""
    other = "bbbbbbbb-0000-4000-8000-000000000000"
    if kept:
        with Spool(tmp_path / "spool") as spool:
            spool.instance_uuid, spool.replicaset_uuid = other, other
            spool.begin_at({1: 1})
            spool.append(np.empty(0, np.uint8), {1: 1})
    how = options(tmp_path / "spool", *addresses(masters))
    with following(how, None if kept else SpoolStart(other, {1: 1})) as replicaset:
        await_until(lambda: replicaset.error is not None, "the refusal")
        assert f"not {other} as the spool" in str(replicaset.error)
        assert replicaset.feeds == {}


def test_a_snapshot_replaces_missing_logs(masters: Mesh, tmp_path: Path) -> None:
    how = options(tmp_path / "spool", *addresses(masters))
    with following(how) as replicaset:
        write(masters, 1, 0, 10)
        await_all(masters, replicaset)
    spooled = sum(masters.vclock(1).values())
    for n in (1, 2, 3):
        drop_retained_logs(masters, n, replicaset.spool.instance_uuid)
    for k in range(3):
        for n in (1, 2, 3):
            write(masters, n, 100 * k + 1000 * n, 20)
            masters[n].eval("box.cfg{checkpoint_count = 1} box.snapshot()")
    await_until(lambda: all(masters.vclock(n) == masters.vclock(1) for n in (1, 2, 3)))

    # A server drops logs that another one has acknowledged when it begins a new log.
    def oldest_log(n: int) -> int:
        masters[n].eval("box.space.load:replace{9000 + ..., 'x'} box.snapshot()", n)
        # A server that has closed its log begins the next one with its next row.
        return min((int(file.stem) for file in masters[n].directory.glob("*.xlog")), default=0)

    # Files are removed later than the garbage collector reports, and a stream begins from existing files.
    gone = "the end of the first logs"
    await_until(lambda: min(map(oldest_log, (1, 2, 3))) > spooled, gone, pause=0.1)
    with following(how) as replicaset:
        await_all(masters, replicaset)
        if replicaset.progress.fetched_snapshots:
            write(masters, 2, 5000, 10)
            await_all(masters, replicaset)
    assert replicaset.progress.fetched_snapshots == 1
    assert len(list((tmp_path / "spool").glob("*.snap"))) == 2
    check(masters, tmp_path / "spool")


def test_a_master_that_lost_rows_is_refused_until_accepted(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with mesh(tmp_path, 1) as masters:
        with following(options(spool, *addresses(masters))) as replicaset:
            write(masters, 1, 0, 100)
            await_all(masters, replicaset)
        masters[1].kill()
        for path in masters[1].directory.glob("*.xlog"):
            path.unlink()
        masters[1].start()
        masters[1].eval(SPACE)
        write(masters, 1, 7, 3, "other")
        with following(options(spool, *addresses(masters))) as replicaset:
            await_until(lambda: isinstance(replicaset.error, RewindError), "the refusal")
            assert "--accept-rewind" in str(replicaset.error)
            assert replicaset.feeds == {}
        with following(options(spool, *addresses(masters), accept_rewind=True)) as replicaset:
            await_until(lambda: replicaset.spool.vclock == masters.vclock(1), "the new spool")
            write(masters, 1, 20, 3)
            await_all(masters, replicaset)
        check(masters, spool)
        assert len(list(spool.glob("rewound-*/*.snap"))) == 1


def cuts() -> list[int]:
    return [*range(0, 128, 9), *range(128, 400, 17), *range(400, 9000, 1999)]


def test_a_connection_that_is_cut_anywhere_changes_nothing(tmp_path: Path) -> None:
    """Each connection of a daemon (handshakes, snapshot, stream) is cut, each time some bytes later."""
    with mesh(tmp_path, 1) as masters:
        cut_at = iter(cuts())
        with (
            Proxy(masters[1].socket, lambda: next(cut_at, None)) as proxy,
            following(options(tmp_path / "spool", proxy.address)) as replicaset,
        ):
            k = 0
            while proxy.accepted < len(cuts()):
                write(masters, 1, 10 * k, 3)
                k += 1
            await_until(lambda: bool(replicaset.feeds), "a stream")
            write(masters, 1, 5000, 3)
            await_all(masters, replicaset)
            assert replicaset.progress.repeated_rows == 0
        check(masters, tmp_path / "spool")


def follow_with_cut(masters: Mesh, spool: Path, cut: int | None) -> int:
    """Follow through a proxy that cuts each connection once, except that of votes; return how many bytes it sent."""
    budgets = iter([None, cut, cut])
    with (
        Proxy(masters[1].socket, lambda: next(budgets, None)) as proxy,
        following(options(spool, proxy.address)) as replicaset,
    ):
        await_until(lambda: bool(replicaset.feeds), "a stream", 600)
        write(masters, 1, 100, 3)
        await_all(masters, replicaset)
    check(masters, spool)
    shutil.rmtree(spool)
    return proxy.sent


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_connection_that_is_cut_at_every_byte_changes_nothing(tmp_path: Path) -> None:
    with mesh(tmp_path, 1) as masters:
        write(masters, 1, 0, 30)
        whole = follow_with_cut(masters, tmp_path / "spool", None)
        assert whole > 5000
        cuts = [*range(SHORT), *range(SHORT, whole, STRIDE)]
        for cut in cuts:
            follow_with_cut(masters, tmp_path / "spool", cut)
        print(f"cut at {len(cuts)} positions of {whole} bytes: the same tuples each time")


def test_a_reader_asks_for_a_snapshot(masters: Mesh, tmp_path: Path) -> None:
    """It is one more file: the logs continue as they are, also after a restart of the daemon."""
    spool = tmp_path / "spool"
    write(masters, 1, 0, 50)
    with following(options(spool, *addresses(masters))) as replicaset:
        await_until(lambda: bool(replicaset.feeds), "a stream")
        write(masters, 1, 100, 100)
        await_all(masters, replicaset)
        snapshots = set(spool.glob("*.snap"))
        ask_for_snapshot(spool)
        await_until(lambda: not is_snapshot_asked(spool), "the snapshot")
        (new,) = set(spool.glob("*.snap")) - snapshots
        write(masters, 2, 200, 100)
        await_all(masters, replicaset)
        assert replicaset.progress.fetched_snapshots == 1
    logs = sorted(spool.glob("*.xlog"))
    with following(options(spool, *addresses(masters))) as replicaset:
        write(masters, 1, 300, 10)
        await_all(masters, replicaset)
        assert replicaset.progress.fetched_snapshots == 0
    assert set(logs) <= set(spool.glob("*.xlog"))
    assert new.is_file()
    with recovered_server(spool, tmp_path / "recovered") as server:
        assert tuples_of(server) == tuples_of(masters[1])
