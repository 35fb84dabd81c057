"""A server's log as a subscription daemon's spool that lacks a part of it, for which it has a snapshot.

Left out: logs with rows of local spaces, which no daemon gets, and with vinyl spaces, whose rows are in no snapshot
of the server's own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np

from sources.spool.options import SpoolOptions
from sources.spool.spool import ServerVersions, Spool
from tests.histories.play import uuid_of
from tests.oracle import log, mp

READER = uuid_of(0, 12)
TYPE, REPLICA_ID, LSN, GROUP_ID, TSN, FLAGS = 0, 2, 3, 7, 8, 9
SERVER_ID = 1

Rows = list[tuple[int, bytes]]
"""Rows of a transaction: lsn and bytes."""


class HoledSpool:
    """A spool that is written in two parts.

    Args:
        folder: Of the spool.
        server: A server's directory with all its logs from the first one on.
        dice: Chooses the snapshot, and where the hole before it begins.
    """

    def __init__(self, folder: Path, server: Path, dice: Random) -> None:
        self.folder = folder
        self._transactions = list(_transactions(server))
        first, *later = sorted(server.glob("*.snap"))
        self._snapshots = first, dice.choice(later)
        self._until = log.vclock(self._snapshots[1]).get(SERVER_ID, 0)
        self._since = dice.randint(0, self._until)

    @staticmethod
    def can_be_made(server: Path) -> bool:
        """Return whether a spool can have all that a server's tables need."""
        rows = [raw for path in _files(server) for _, raw in _rows(path)]
        local = any(_header(raw).get(GROUP_ID, 0) for raw in rows)
        return (
            len(list(server.glob("*.snap"))) > 1
            and not local
            and not any(b"\xa5vinyl" in raw for raw in rows)
        )

    def write_first(self) -> None:
        """Write the server's first snapshot, and the log up to the hole."""
        with self._opened() as spool:
            _write_snapshot(spool, self._snapshots[0], 0)
            self._append(spool, 0, self._since)

    def write_rest(self) -> None:
        """Write the snapshot behind the hole, and the rest of the log."""
        with self._opened() as spool:
            _write_snapshot(spool, self._snapshots[1], self._until)
            self._append(spool, self._until, self._transactions[-1][-1][0])

    @contextmanager
    def _opened(self) -> Iterator[Spool]:
        with Spool(self.folder, SpoolOptions(compress=False)) as spool:
            spool.instance_uuid, spool.replicaset_uuid = READER, uuid_of(0, 10)
            spool.versions = ServerVersions(log.meta(self._snapshots[0])["Version"])
            yield spool

    def _append(self, spool: Spool, after: int, until: int) -> None:
        """Append the transactions whose last lsn is beyond `after` and not beyond `until`."""
        for rows in self._transactions:
            lsn = rows[-1][0]
            if after < lsn <= until:
                spool.append(np.frombuffer(b"".join(raw for _, raw in rows), np.uint8), {SERVER_ID: lsn})


def _files(server: Path) -> list[Path]:
    return sorted(server.glob("*.xlog"))


def _write_snapshot(spool: Spool, path: Path, lsn: int) -> None:
    writer = spool.create_snapshot({SERVER_ID: lsn})
    for _, raw in _rows(path):
        writer.write_block(raw)
    writer.close()
    spool.continue_from({SERVER_ID: lsn})


def _transactions(server: Path) -> Iterator[Rows]:
    rows: Rows = []
    for path in _files(server):
        for lsn, raw in _rows(path):
            rows.append((lsn, raw))
            header = _header(raw)
            if TSN not in header or header.get(FLAGS, 0) & log.COMMIT_FLAG:
                yield rows
                rows = []


def _rows(path: Path) -> Iterator[tuple[int, bytes]]:
    for block in log.blocks(path):
        pieces = mp.split_objects(block)
        index = 0
        while index < len(pieces):
            header = mp.decode(pieces[index])
            size = 2 if header.get(TYPE) != log.NOP and index + 1 < len(pieces) else 1
            yield header.get(LSN, 0), b"".join(pieces[index : index + size])
            index += size


def _header(raw: bytes) -> dict[int, int]:
    found: dict[int, int] = mp.decode(mp.split_objects(raw)[0])
    return found
