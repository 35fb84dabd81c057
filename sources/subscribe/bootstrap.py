"""Writes one server's state (FETCH_SNAPSHOT) into a spool as a `.snap`, and returns the vclock to continue from.

The rows continue from the vclock of the read view, which the server sends *first*; the vclock that it sends last is
newer than the snapshot's rows.
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
    """Writes a snapshot's rows; buffers those that come before the file is open."""

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
    """Return the error of a snapshot that cannot be written."""
    if error.errno in NO_ROOM:
        return disk_space.full_error(writer.position, error.strerror or "no room")
    return SpoolError(f"the snapshot cannot be written: {error}", file=str(writer.path))


async def fetch_snapshot(link: PeerLink, spool: Spool, disk_space: DiskSpace) -> Mapping[int, int]:
    """Write a server's snapshot into a spool and return the vclock from which its rows continue.

    Raises
    ------
    IprotoError
        The server refused, or the connection broke: the spool is as it was.
    SpoolFullError
        There is no room for it, or for the rest of it: the spool is as it was.
    SpoolError
        The snapshot cannot be written: the spool is as it was.

    """
    disk_space.check()
    output = _SnapshotWriter(disk_space)
    rows = SnapshotStream(output.write, link.name, limit=spool.options.max_block_bytes)
    # A server with unfinished synchronous transactions answers when they are settled.
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
                    raise ConnectionLostError("the snapshot stopped", peer=link.name)
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
