"""A relay that knows which bytes are on the disk does not send rows that a power failure may remove."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from schemas.iproto import VCLOCK_MAX
from sources.relay.row_packets import LogPackets, RowFramer
from sources.spool.catalog import SpoolCatalog
from sources.spool.options import SpoolOptions
from sources.spool.spool import Spool
from sources.xlog.format.arrays import Ints
from sources.xlog.format.writer import Fsync
from tests.sources.relay.spools import START, append, write_spool


def send_all_ids(_: Mapping[int, str]) -> Ints:
    return np.ones(VCLOCK_MAX, np.int64)


def send_available_rows(frames: LogPackets, catalog: SpoolCatalog) -> dict[int, int]:
    """Send all rows that may be sent now, and return the subscriber's vclock."""
    catalog.refresh()
    for _ in frames.unsent_packets():
        pass
    return frames.vclock


def test_a_block_waits_until_it_is_on_the_disk(tmp_path: Path) -> None:
    write_spool(tmp_path)
    with Spool(tmp_path, SpoolOptions(compress=False, fsync=Fsync.BLOCK)) as spool:
        append(spool, 1)
        ends = [spool.durable_end]
        append(spool, 1)
        ends.append(spool.durable_end)
        assert ends[0] is not None
        assert ends[1] is not None
        assert ends[0][1] < ends[1][1]
        reported = [ends[0]]
        catalog = SpoolCatalog(tmp_path, durable_end=lambda: reported[0])
        catalog.refresh()
        frames = LogPackets(catalog, RowFramer(1, {1: START}), send_all_ids)
        assert send_available_rows(frames, catalog) == {1: START + 1}
        assert catalog.vclock == {1: START + 1}
        reported[0] = ends[1]
        assert send_available_rows(frames, catalog) == {1: START + 2}
        frames.close()


def test_a_block_that_the_catalog_has_not_seen_waits(tmp_path: Path) -> None:
    """The block may have rows of a replica id whose instance the catalog does not know yet."""
    write_spool(tmp_path)
    with Spool(tmp_path, SpoolOptions(compress=False)) as spool:
        append(spool, 1)
        catalog = SpoolCatalog(tmp_path)
        catalog.refresh()
        frames = LogPackets(catalog, RowFramer(1, {1: START}), send_all_ids)
        append(spool, 1)
        for _ in frames.unsent_packets():
            pass
        assert frames.vclock == {1: START + 1}
        assert send_available_rows(frames, catalog) == {1: START + 2}
        frames.close()


def test_the_next_log_follows_a_closed_one(tmp_path: Path) -> None:
    write_spool(tmp_path, 3)
    catalog = SpoolCatalog(tmp_path)
    catalog.refresh()
    frames = LogPackets(catalog, RowFramer(1, {1: START}), send_all_ids)
    assert send_available_rows(frames, catalog) == {1: START + 3}
    write_spool(tmp_path, 2)
    assert len(list(tmp_path.glob("*.xlog"))) == 2
    assert send_available_rows(frames, catalog) == {1: START + 5}
    frames.close()
