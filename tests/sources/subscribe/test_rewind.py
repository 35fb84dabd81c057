"""A master that was restored to an older state and has written again is refused, though its vclock looks right."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from schemas.errors import RewindError
from sources.iproto.messages import Ballot
from sources.iproto.row_stream import TransactionChunk
from sources.subscribe.rewind import FINGERPRINTS_PER_ID, PeerHistory
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.live.mesh import Mesh, mesh
from tests.sources.subscribe.following import await_until, following, options
from tests.sources.subscribe.test_following import addresses, await_all, check, write

A1 = "a0000001-0000-4000-8000-000000000001"


def copy_of(masters: Mesh, number: int, to: Path) -> None:
    """Copy a master's files as a backup, while the master is stopped."""
    masters[number].stop()
    shutil.copytree(masters[number].directory, to)
    masters[number].start()


def restore(masters: Mesh, number: int, backup: Path) -> None:
    masters[number].kill()
    shutil.rmtree(masters[number].directory)
    shutil.copytree(backup, masters[number].directory)
    masters[number].start()


@pytest.mark.live
def test_a_master_that_was_restored_and_has_written_on_is_refused(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with mesh(tmp_path, 1) as masters:
        with following(options(spool, *addresses(masters))) as replicaset:
            await_until(lambda: bool(replicaset.feeds), "a stream")
            write(masters, 1, 0, 20)
            await_all(masters, replicaset)
        copy_of(masters, 1, tmp_path / "backup")
        with following(options(spool, *addresses(masters))) as replicaset:
            write(masters, 1, 100, 20, "lost")
            await_all(masters, replicaset)
            received = dict(replicaset.spool.vclock or {})
        restore(masters, 1, tmp_path / "backup")
        write(masters, 1, 500, 40, "other")
        assert masters.vclock(1)[1] > received[1]
        with following(options(spool, *addresses(masters))) as replicaset:
            await_until(lambda: isinstance(replicaset.error, RewindError), "the refusal")
            assert "differs from the one that was received" in str(replicaset.error)
            assert "--accept-rewind" in str(replicaset.error)
            write(masters, 1, 600, 10, "more")
            await_until(lambda: replicaset.links[0].ballot is not None)
            assert (replicaset.feeds, replicaset.spool.vclock) == ({}, received)
        with following(options(spool, *addresses(masters), accept_rewind=True)) as replicaset:
            await_until(lambda: replicaset.spool.vclock == masters.vclock(1), "the new spool")
            write(masters, 1, 700, 3)
            await_all(masters, replicaset)
        check(masters, spool)
        assert len(list(spool.glob("rewound-*/*.xlog"))) >= 1


@pytest.mark.live
def test_a_restore_under_a_running_daemon_is_refused_too(tmp_path: Path) -> None:
    with mesh(tmp_path, 1) as masters:
        copy_of(masters, 1, tmp_path / "backup")
        with following(options(tmp_path / "spool", *addresses(masters))) as replicaset:
            await_until(lambda: bool(replicaset.feeds), "a stream")
            write(masters, 1, 100, 20, "lost")
            await_all(masters, replicaset)
            received = dict(replicaset.spool.vclock or {})
            masters[1].kill()
            shutil.rmtree(masters[1].directory)
            shutil.copytree(tmp_path / "backup", masters[1].directory)
            masters[1]._lua += "for i = 1, 60 do box.space.load:replace{i, 'other'} end"
            masters[1].start()
            await_until(lambda: isinstance(replicaset.error, RewindError), "the refusal")
            assert replicaset.spool.vclock == received


@pytest.mark.live
def test_a_restarted_master_is_accepted(tmp_path: Path) -> None:
    with mesh(tmp_path, 1) as masters:
        with following(options(tmp_path / "spool", *addresses(masters))) as replicaset:
            for k in range(4):
                await_until(lambda: bool(replicaset.feeds), "a stream")
                write(masters, 1, 10 * k, 10)
                await_all(masters, replicaset)
                masters[1].stop()
                await_until(lambda: not replicaset.feeds, "the end of the stream")
                masters[1].start()
            await_until(lambda: bool(replicaset.feeds), "a stream")
            assert replicaset.links[0].connection_count >= 5
            assert replicaset.links[0].verified_connection == replicaset.links[0].connection_count
        with following(options(tmp_path / "spool", *addresses(masters))) as replicaset:
            write(masters, 1, 500, 10)
            await_all(masters, replicaset)
            assert replicaset.progress.fetched_snapshots == 0
        check(masters, tmp_path / "spool")


def chunk(*rows: tuple[int, int, bytes]) -> TransactionChunk:
    """Return single-row transactions from (replica id, lsn, tuple)."""
    encoded = [
        encode_row(3, encode_body(space_id=512, tuple_=tuple_), replica_id=i, lsn=lsn, timestamp=1.5)
        for i, lsn, tuple_ in rows
    ]
    ends = np.cumsum([len(row) for row in encoded])
    ids, lsns = (np.array([row[k] for row in rows], np.int64) for k in (0, 1))
    return TransactionChunk(
        np.frombuffer(b"".join(encoded), np.uint8), ends, np.full(len(rows), 1.5), ids, lsns
    )


def test_the_last_rows_of_each_origin_are_stored(tmp_path: Path) -> None:
    history = PeerHistory(tmp_path)
    history.load()
    for second in range(5):
        history.record_chunk(
            A1, chunk((1, 10 + second, b"\x91\x01"), (2, 20 + second, b"\x91\x02")), 10.0 + second
        )
    for lsn, at in ((15, 14.5), (16, 14.6), (17, 14.9)):
        history.record_chunk(A1, chunk((1, lsn, b"\x91\x01")), at)
    history.record_chunk(A1, chunk((1, 17, b"\x91\x01")), 20.0)
    history.save()
    again = PeerHistory(tmp_path)
    again.load()
    ballot = Ballot({1: 100, 2: 100}, {2: 22}, False)
    found = again.comparable_fingerprints(A1, ballot, {1: 100, 2: 100})
    assert [mark.lsn for mark in found[1]] == [13, 14, 17]
    assert len(found[1]) == FINGERPRINTS_PER_ID
    assert [mark.lsn for mark in found[2]] == [23, 24]
    assert again.comparable_fingerprints(A1, ballot, {1: 14}) == {1: found[1][:2]}
    assert again.comparable_fingerprints("other", ballot, {1: 100}) == {}
    again.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_history_file_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text('{"a": [{"odd": 1}]}')
    history = PeerHistory(tmp_path)
    history.load()
    assert history.comparable_fingerprints("a", Ballot({1: 1}, {}, False), {1: 1}) == {}
