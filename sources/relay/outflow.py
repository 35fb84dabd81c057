"""A spool's rows as packets for one subscriber: a snapshot, then the logs from a vclock on, as far as they are written.

No row is decoded: it is framed as it lies in the log (`kernels.frames`). Not here: sockets (`session`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from schemas.errors import ConnectionLostError, GapError, ProtocolError
from schemas.iproto import VCLOCK_MAX
from sources.iproto.inflow import dense, sparse
from sources.iproto.kernels import wire as kernel
from sources.iproto.kernels.frames import frame_rows
from sources.relay.catalog import SpoolCatalog
from sources.spool.blocks import BlockReader
from sources.spool.spool import ServerVersions
from sources.spool.state import SpoolFile
from sources.xlog.format.arrays import Bytes, Ints
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.kernels.chain import walk_blocks
from sources.xlog.format.kernels.frame import frame_bound
from sources.xlog.format.vclock import Vclock, not_beyond, shared

OUT_BYTES = 1 << 18
Wanted = Callable[[Mapping[int, str]], Ints]


class Framer:
    """Frames blocks of rows for one subscriber.

    Parameters
    ----------
    sync : int
        Of its request.
    vclock : Vclock
        What it has.

    """

    def __init__(self, sync: int, vclock: Vclock) -> None:
        self.sync, self.vclock = sync & 0xFFFFFFFF, dense(vclock)
        self.wanted: Ints = np.ones(VCLOCK_MAX, np.int64)
        """int64[32]: whether rows of an id are wanted."""
        self.until: Ints = np.zeros(2, np.int64)
        """int64[2]: replica id and lsn of the row at which `reached` is called, behind it; zeros: of none."""
        self.reached: Callable[[], None] = lambda: None
        """Sets `wanted` and `until` anew."""
        self._out: Bytes = np.empty(OUT_BYTES, np.uint8)

    def frames(self, rows: Bytes, *, snapshot: bool = False) -> Iterator[bytes]:
        """Yield the packets of a block, several at a time."""
        state = np.zeros(kernel.STATE_SIZE, np.int64)
        while True:
            status = frame_rows(
                *(rows, rows.size, self.sync, self.vclock, self.wanted, self.until),
                *(snapshot, state, self._out),
            )
            if state[kernel.OUT]:
                yield self._out[: state[kernel.OUT]].tobytes()
                state[kernel.OUT] = 0
            elif status == kernel.FULL:
                self._out = np.empty(max(2 * self._out.size, int(state[kernel.NEED])), np.uint8)
            if status == kernel.MORE:
                if self._out.size > OUT_BYTES:
                    self._out = np.empty(OUT_BYTES, np.uint8)  # what a large row took is given back
                return
            if status == kernel.REACHED:
                self.reached()
            if status < 0:
                raise ProtocolError("a row of the spool is no xrow")


def warm() -> None:
    """Compile the kernels, or load what was compiled: later it would hold up all subscribers, for seconds."""
    rows = np.zeros(0, np.uint8)
    read_only = rows.view()
    read_only.flags.writeable = False
    # Blocks that are not compressed lie in what was read, which cannot be written.
    for block in (rows, read_only):
        list(Framer(0, {}).frames(block))
    walk_blocks(read_only, 0, 0, 0, BLOCK_LIMIT, True, np.empty((4, 1), np.int64))
    frame_bound(read_only, 0, 0)


def snapshot_frames(path: Path, sync: int, limit: int = BLOCK_LIMIT) -> Iterator[bytes]:
    """Yield a snapshot's rows as FETCH_SNAPSHOT sends them."""
    framer = Framer(sync, {})
    with BlockReader(path, limit) as reader:
        while rows := reader.read():
            for block in rows:
                yield from framer.frames(block, snapshot=True)


class LogFrames:
    """The rows that follow a vclock, as SUBSCRIBE sends them; asked again and again.

    Parameters
    ----------
    catalog : SpoolCatalog
        Refreshed before each question.
    framer : Framer
        With the subscriber's vclock.
    wanted : callable
        Returns which ids are wanted, int64[32], while they are those of {replica id: instance uuid}.

    """

    def __init__(self, catalog: SpoolCatalog, framer: Framer, wanted: Wanted) -> None:
        self._catalog, self._framer, self._wanted = catalog, framer, wanted
        self._reader: BlockReader | None = None
        self._holders: dict[int, str] = {}
        self._handovers = 0
        framer.reached = self._hand_over
        self.versions = self._begin()
        """Of the servers whose rows are sent: the subscriber is told them once, so all of its rows are of them."""

    @property
    def vclock(self) -> dict[int, int]:
        """What was sent."""
        return sparse(self._framer.vclock)

    def close(self) -> None:
        """Close the file that is being read."""
        if self._reader is not None:
            self._reader.__exit__()
            self._reader = None

    def more(self) -> Iterator[bytes]:
        """Yield what is written and not sent yet.

        Raises
        ------
        GapError
            The logs do not go on from the subscriber's vclock.
        ConnectionLostError
            The log that comes next has rows of servers of other versions: the subscriber must begin anew.

        """
        while True:
            if self._reader is None:
                self._reader = self._opened()
                if self._reader is None:
                    return
            if ServerVersions.of(self._reader.meta, self._reader.path.name) != self.versions:
                raise ConnectionLostError("the rows that follow are of a server of another version")
            rows = self._reader.read(self._catalog.read_upto(self._reader.path))
            self._aim()
            for block in rows:
                yield from self._framer.frames(block)
            if not rows and self._reader.is_empty and not self._reader.is_closed:
                # The daemon writes a log without rows anew where another server follows.
                self.close()
                return
            if not rows and not self._next():
                return

    def _begin(self) -> ServerVersions:
        try:
            self._reader = self._opened()
        except GapError:
            self._reader = None  # `more` says so
        newest = [*self._catalog.snapshots, *self._catalog.logs][-1:]
        meta = self._reader.meta if self._reader is not None else newest[0].meta if newest else None
        return ServerVersions("") if meta is None else ServerVersions.of(meta, "")

    def _opened(self) -> BlockReader | None:
        """Open the newest log that begins at or before what the subscriber has."""
        logs = self._catalog.logs
        for file in reversed(logs):
            if self._covers(file):
                return self._open(file)
        if not logs and not_beyond(self._needed(self._catalog.vclock, self._catalog.cluster), self.vclock):
            return None
        raise self._gap(logs[0].meta.vclock if logs else self._catalog.vclock)

    def _next(self) -> bool:
        """Go to the log after the one that is read to its end; return whether there is one."""
        reader = self._reader
        names = [file.path for file in self._catalog.logs]
        if reader is None or reader.path not in names:
            self.close()
            return reader is not None and bool(names) and self._opens_anew()
        index = names.index(reader.path)
        if index + 1 == len(names) or not reader.is_closed:
            return False
        following = self._catalog.logs[index + 1]
        if not self._covers(following):
            raise self._gap(following.meta.vclock)
        self.close()
        self._reader = self._open(following)
        return True

    def _opens_anew(self) -> bool:
        self._reader = self._opened()
        return self._reader is not None

    def _open(self, file: SpoolFile) -> BlockReader:
        self._holders, self._handovers = dict(self._catalog.holders_at(file.path)), 0
        self._framer.wanted = self._wanted(self._holders)
        return BlockReader(file.path, self._catalog.limit)

    def _aim(self) -> None:
        """Let the framer stop behind the next row that gives an id to an instance."""
        path = None if self._reader is None else self._reader.path
        following = () if path is None else self._catalog.handovers(path)[self._handovers :][:1]
        self._framer.until[:] = (following[0].origin, following[0].lsn) if following else (0, 0)

    def _hand_over(self) -> None:
        if self._reader is not None:
            handover = self._catalog.handovers(self._reader.path)[self._handovers]
            self._holders[handover.replica_id] = handover.instance_uuid
            self._handovers += 1
            self._framer.wanted = self._wanted(self._holders)
        self._aim()

    def _needed(self, vclock: Vclock, holders: Mapping[int, str]) -> dict[int, int]:
        wanted = self._wanted(holders)
        return {i: lsn for i, lsn in shared(vclock).items() if wanted[i]}

    def _covers(self, file: SpoolFile) -> bool:
        return not_beyond(self._needed(file.meta.vclock, self._catalog.holders_at(file.path)), self.vclock)

    def _gap(self, vclock: Mapping[int, int]) -> GapError:
        return GapError(
            f"Missing .xlog file between LSN {sum(self.vclock.values())} {self.vclock} "
            f"and {sum(shared(vclock).values())} {shared(vclock)}"
        )
