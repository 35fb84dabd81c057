"""Fetches a snapshot of a server (FETCH_SNAPSHOT) and writes it to a spool as a `.snap` file.

The server sends two vclocks. The first one is that of the snapshot, from which SUBSCRIBE continues; the one after the
rows is newer than the snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from schemas.errors import ConnectionLostError, SpoolError
from sources.iproto.client import connect
from sources.iproto.inflow import SnapshotStream
from sources.iproto.messages import answer_vclock
from sources.spool.room import NO_ROOM, DiskSpace
from sources.spool.spool import ServerVersions, Spool
from sources.subscribe.feed import relay_versions
from sources.subscribe.link import PeerLink
from sources.xlog.format.arrays import Bytes
from sources.xlog.format.writer import XlogWriter

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.05


class _SnapshotWriter:
    """Writes a snapshot's rows; rows that come before the file is open are buffered."""

    def __init__(self, disk_space: DiskSpace) -> None:
        self._disk_space = disk_space
        self._early: list[Bytes] = []
        self._writer: XlogWriter | None = None

    def open(self, writer: XlogWriter) -> None:
        self._writer = writer
        for rows in self._early:
            writer.write_block(rows.tobytes())
        self._early.clear()

    def write(self, rows: Bytes) -> None:
        if self._writer is None:
            self._early.append(rows)
            return
        try:
            self._writer.write_block(rows.tobytes())
        except OSError as error:
            raise _snapshot_error(error, self._writer, self._disk_space) from error


def _snapshot_error(error: OSError, writer: XlogWriter, disk_space: DiskSpace) -> SpoolError:
    """Return the exception for a write error of a snapshot; a full disk gets its own."""
    if error.errno in NO_ROOM:
        return disk_space.full_error(writer.position, error.strerror or "no room")
    return SpoolError(f"the snapshot cannot be written: {error}", file=str(writer.path))


async def fetch_snapshot(link: PeerLink, spool: Spool, disk_space: DiskSpace) -> Mapping[int, int]:
    """Write a server's snapshot to a spool, let the spool continue from it, and return its vclock.

    After an error, the spool is unchanged.

    Raises
    ------
    IprotoError
        The server refused, or the connection broke.
    SpoolFullError
        The disk has too little space for the snapshot.
    SpoolError
        The snapshot cannot be written.

    """
    disk_space.check()
    output = _SnapshotWriter(disk_space)
    rows = SnapshotStream(output.write, link.name, limit=spool.options.max_block_bytes)
    # A server with pending synchronous transactions answers after they are confirmed or rolled back.
    connection = await connect(link.peer, link.timing.answer)
    try:
        answer = await connection.fetch_snapshot(rows, spool.instance_uuid or "")
        vclock = answer_vclock(answer)
        server_versions = ServerVersions(".".join(map(str, connection.greeting.version)))
        spool.versions = relay_versions(answer) or server_versions
        writer = spool.snapshot(vclock)
        try:
            output.open(writer)
            end = connection.wire.end_of_stream
            while not end.done():
                await asyncio.wait([end], timeout=CHECK_SECONDS)
                disk_space.check(writer.position)
                if (
                    asyncio.get_running_loop().time() - connection.wire.last_received_at
                    > 4 * link.timing.answer
                ):
                    raise ConnectionLostError("the server stopped sending the snapshot", peer=link.name)
            end.result()
            writer.close()
        except BaseException as error:
            with contextlib.suppress(OSError):
                writer.abandon()
                writer.path.with_name(writer.path.name + ".inprogress").unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _snapshot_error(error, writer, disk_space) from error
            raise
    finally:
        connection.close()
    spool.continue_from(vclock)
    logger.info("%s: snapshot of %d rows at %s", link.name, rows.rows, dict(vclock))
    return vclock
