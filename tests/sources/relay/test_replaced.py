"""What a daemon does to its files while a relay serves them: logs are truncated, left open, set aside."""

from pathlib import Path

import msgpack
import numpy as np
import pytest

from schemas.errors import ConnectionLostError, GapError, SpoolBrokenError
from sources.relay.row_packets import LogPackets, RowFramer
from sources.spool.catalog import SpoolCatalog
from sources.spool.options import SpoolOptions
from sources.spool.spool import Spool
from sources.spool.state import REWOUND_PREFIX
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.sources.relay.spools import REPLICASET, START, append, system_row, write_spool
from tests.sources.relay.test_durable import send_all_ids, send_available_rows


def spool_of(directory: Path) -> Spool:
    return Spool(directory, SpoolOptions(compress=False))


def append_block(spool: Spool, count: int, value: int = 1) -> None:
    body, lsn = encode_body(space_id=512, tuple_=msgpack.packb([value])), (spool.vclock or {})[1]
    rows = [encode_row(3, body, timestamp=1.5, replica_id=1, lsn=lsn + k + 1) for k in range(count)]
    spool.append(np.frombuffer(b"".join(rows), np.uint8), {1: lsn + count})


def take_snapshot(spool: Spool, vclock: dict[int, int]) -> None:
    with spool.create_snapshot(vclock) as writer:
        writer.write([system_row(0, 272, ["cluster", REPLICASET])])


def subscribed(directory: Path) -> tuple[SpoolCatalog, LogPackets]:
    catalog = SpoolCatalog(directory)
    catalog.refresh()
    return catalog, LogPackets(catalog, RowFramer(1, {1: START}), send_all_ids)


@pytest.mark.parametrize("is_seen", [False, True])
@pytest.mark.parametrize("again", [1, 2, 5])
@pytest.mark.parametrize("durable", [0, 2])
def test_rows_that_a_failed_disk_took_are_sent_when_they_come_again(
    tmp_path: Path, durable: int, again: int, is_seen: bool
) -> None:
    """A log is cut back to what is on the disk, and written again: other blocks, or another log."""
    write_spool(tmp_path, 3)
    spool = spool_of(tmp_path).__enter__()
    if durable:
        append(spool, durable)
        point = spool.flush_point()
        assert point is not None
        spool.record_flush(point)
    append(spool, 2)
    catalog, packets = subscribed(tmp_path)
    assert send_available_rows(packets, catalog) == {1: START + 3 + durable + 2}
    spool.record_flush_failure(OSError(5, "EIO"))
    if is_seen:
        send_available_rows(packets, catalog)
    append_block(spool, again)
    append_block(spool, 7)
    reached = {1: START + 3 + durable + again + 7}
    assert spool.vclock == reached
    try:
        send_available_rows(packets, catalog)
    except ConnectionLostError:  # the log was written again between two looks
        assert not is_seen
        packets.close()
        packets = LogPackets(catalog, RowFramer(1, packets.vclock), send_all_ids)
    assert send_available_rows(packets, catalog) == reached
    assert catalog.vclock == reached
    append(spool, 1)
    assert send_available_rows(packets, catalog) == spool.vclock
    packets.close()
    spool.abandon()


def test_a_log_that_is_left_open_before_a_gap_is_a_gap(tmp_path: Path) -> None:
    """A daemon is killed behind the snapshot of a generation, before it closes the log."""
    write_spool(tmp_path)
    spool = spool_of(tmp_path).__enter__()
    append(spool, 3)
    catalog, packets = subscribed(tmp_path)
    assert send_available_rows(packets, catalog) == {1: START + 3}
    take_snapshot(spool, {1: 50})
    spool.abandon()
    with spool_of(tmp_path) as spool:
        append(spool, 1)
        with pytest.raises(GapError):
            send_available_rows(packets, catalog)
    packets.close()


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_spool_that_was_set_aside_ends_the_streams(tmp_path: Path, is_seen: bool) -> None:
    """The rows of the new one have the lsns of other rows that were sent."""
    write_spool(tmp_path, 30)
    catalog, packets = subscribed(tmp_path)
    assert send_available_rows(packets, catalog) == {1: START + 30}
    with spool_of(tmp_path) as spool:
        spool.move_files_to(f"{REWOUND_PREFIX}1")
        if is_seen:
            catalog.refresh()
            assert catalog.vclock == {}
        take_snapshot(spool, {1: START})
        spool.continue_from({1: START})
        append_block(spool, 3)
        with pytest.raises(ConnectionLostError, match="set aside"):
            send_available_rows(packets, catalog)
        assert catalog.vclock == {1: START + 3}
        _, again = subscribed(tmp_path)
        assert send_available_rows(again, catalog) == {1: START + 3}


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_log_of_another_history_ends_the_streams(tmp_path: Path, is_renamed: bool) -> None:
    """Somebody restored other files under the same names; the rows are as long as those that were sent."""
    served, other = tmp_path / "served", tmp_path / "other"
    for directory, value in ((served, 1), (other, 2)):
        write_spool(directory)
        with spool_of(directory) as spool:
            for _ in range(3):
                append_block(spool, 1, value)
    catalog, packets = subscribed(served)
    assert send_available_rows(packets, catalog) == {1: START + 3}
    with spool_of(other) as spool:
        append_block(spool, 2, 2)
    for path in other.glob("*.xlog"):
        if is_renamed:
            path.rename(served / path.name)
        else:
            (served / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ConnectionLostError, match="written again"):
        send_available_rows(packets, catalog)
    _, again = subscribed(served)
    assert send_available_rows(again, catalog) == {1: START + 5}


@pytest.mark.parametrize("change", ["replaced", "removed", "shorter", "longer"])
def test_a_daemon_does_not_write_on_in_a_log_that_was_changed_beside_it(tmp_path: Path, change: str) -> None:
    """An open file that has lost its name takes rows that nobody finds again."""
    write_spool(tmp_path)
    spool = spool_of(tmp_path).__enter__()
    append(spool, 3)
    (log,) = tmp_path.glob("*.xlog")
    content = log.read_bytes()
    if change in ("replaced", "removed"):
        log.unlink()
    if change != "removed":
        log.write_bytes({"shorter": content[:-1], "longer": content + b"x"}.get(change, content))
    with pytest.raises(SpoolBrokenError, match="by somebody else"):
        append(spool, 1)
    spool.abandon()
    with spool_of(tmp_path) as again:
        assert again.vclock == {1: START + {"removed": 0, "shorter": 2}.get(change, 3)}
        append(again, 1)
