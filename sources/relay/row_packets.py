"""Encodes a spool's rows as packets for one subscriber: a snapshot, or the rows after a vclock.

Rows are not decoded: their bytes in the log get a packet's length and header (`kernels.frames`). `session` sends the
packets. `BlockReader` reads a growing log block by block; it raises an error for damage, but not for an incomplete
block at the end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import zstandard

from schemas.errors import ConnectionLostError, GapError, ProtocolError, SpoolError
from schemas.iproto import VCLOCK_MAX
from sources.iproto.kernels import wire as kernel
from sources.iproto.kernels.frames import frame_rows
from sources.iproto.row_stream import array_to_vclock, vclock_to_array
from sources.spool.catalog import SpoolCatalog
from sources.spool.spool import ServerVersions
from sources.spool.state import SpoolFile
from sources.xlog.format.arrays import Bytes, Ints
from sources.xlog.format.block import BLOCK_LIMIT, MAGIC_SIZE, decompress
from sources.xlog.format.damage import WalkStatus, damage_error
from sources.xlog.format.kernels.chain import (
    BLOCK_BEGIN,
    BLOCK_END,
    BLOCK_ZSTD,
    decompressed_bound,
    walk_blocks,
)
from sources.xlog.format.meta import META_LIMIT, Meta, parse_meta
from sources.xlog.format.vclock import Vclock, is_at_most, without_local
from sources.xlog.stream.origins import unknown_instance_error

READ_BYTES = 1 << 20
BLOCKS_PER_READ = 1 << 12


class BlockReader:
    """Reads the blocks of one file in order; as a context manager it closes the file.

    Blocks of the `.xlog` or `.snap` file may have up to `limit` bytes, compressed and decompressed.
    """

    def __init__(self, path: Path, limit: int = BLOCK_LIMIT) -> None:
        self.path, self._limit = path, limit
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.meta: Meta = parse_meta(os.pread(self._file, META_LIMIT, 0), path.name)
        self.position = self.meta.length
        """Position of the next block, in bytes."""
        self.is_closed = False
        """Whether the end marker of the file was read."""
        self._size = READ_BYTES
        self._zstd = zstandard.ZstdDecompressor()

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @property
    def is_empty(self) -> bool:
        """Whether no block has been read yet."""
        return self.position == self.meta.length

    def read_blocks(self, end: int | None = None) -> list[Bytes]:
        """Return the rows of the next complete blocks, one array per block; an empty list if there are none yet.

        Args:
            end: Position in the file, in bytes: only blocks that begin before it are read. None: there is no limit.

        Raises:
            SpoolError, XlogError: The file is damaged.
        """
        while not self.is_closed:
            data = np.frombuffer(os.pread(self._file, self._size, self.position), np.uint8)
            if data.size < MAGIC_SIZE:
                return []
            blocks = np.empty((4, BLOCKS_PER_READ), np.int64)
            stop = data.size if end is None else min(data.size, end - self.position)
            count, blocks_end, status = walk_blocks(data, 0, data.size, stop, self._limit, True, blocks)
            if status < 0:
                raise damage_error(WalkStatus(int(status)), self.path.name, self.position + int(blocks_end))
            blocks_read = [self._decompress_block(data, blocks[:, k]) for k in range(count)]
            self.position += int(blocks_end)
            self.is_closed = status == WalkStatus.EOF
            if blocks_read or data.size < self._size or stop < data.size:
                self._size = READ_BYTES
                return blocks_read
            if not self.is_closed:
                self._size *= 2
        return []

    def _decompress_block(self, data: Bytes, block: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Bytes:
        begin, end = int(block[BLOCK_BEGIN]), int(block[BLOCK_END])
        if not block[BLOCK_ZSTD]:
            return data[begin:end]
        bound = int(decompressed_bound(data, begin, end))
        if bound < 0:
            raise SpoolError(
                "a block is not exactly one zstd frame", file=str(self.path), offset=self.position
            )
        out = np.empty(min(bound, self._limit + 1), np.uint8)
        try:
            size = decompress(data.data[begin:end], out.data, self._zstd)
        except zstandard.ZstdError as error:
            raise SpoolError(
                f"a block cannot be decompressed: {error}", file=str(self.path), offset=self.position
            ) from None
        if size > self._limit:
            raise damage_error(WalkStatus.TOO_BIG, self.path.name, self.position)
        return out[:size]


OUTPUT_BYTES = 1 << 18
"""Initial size of the buffer for packets, in bytes."""
TreatmentRule = Callable[[Mapping[int, str]], Ints]
"""Returns the treatment of each replica id's rows, int64[32], for a {replica id: instance uuid}."""


class RowFramer:
    """Converts blocks of a log to packets for one subscriber.

    `sync` is the IPROTO_SYNC of the subscriber's request. Rows up to `vclock`, the vclock of the subscriber, are left
    out.
    """

    def __init__(self, sync: int, vclock: Vclock) -> None:
        self.sync, self.vclock = sync & 0xFFFFFFFF, vclock_to_array(vclock)
        self.treatments: Ints = np.ones(VCLOCK_MAX, np.int64)
        """int64[32], by replica id: what happens to its rows, such as `SENT` of `kernels.wire`."""
        self.stop_row: Ints = np.zeros(2, np.int64)
        """int64[2]: replica id and lsn of the row after which `on_stop_row` is called; zeros: no row."""
        self.on_stop_row: Callable[[], None] = lambda: None
        """Sets `treatments` and `stop_row` again."""
        self._out: Bytes = np.empty(OUTPUT_BYTES, np.uint8)

    def packets(self, rows: Bytes, *, is_snapshot: bool = False) -> Iterator[bytes]:
        """Yield the packets of a block's rows; each item is one or more packets.

        Raises:
            UnknownInstanceError: The treatment of the next row is `UNKNOWN`.
        """
        state = np.zeros(kernel.STATE_SIZE, np.int64)
        while True:
            status = frame_rows(
                *(rows, rows.size, self.sync, self.vclock, self.treatments, self.stop_row),
                *(is_snapshot, state, self._out),
            )
            if state[kernel.WRITTEN]:
                yield self._out[: state[kernel.WRITTEN]].tobytes()
                state[kernel.WRITTEN] = 0
            elif status == kernel.OUTPUT_FULL:
                self._out = np.empty(max(2 * self._out.size, int(state[kernel.NEEDED_BYTES])), np.uint8)
            if status == kernel.END_OF_INPUT:
                if self._out.size > OUTPUT_BYTES:
                    self._out = np.empty(OUTPUT_BYTES, np.uint8)  # frees the memory of a large row
                return
            if status == kernel.STOP_ROW:
                self.on_stop_row()
            if status == kernel.UNKNOWN_INSTANCE:
                raise unknown_instance_error(int(state[kernel.REPLICA]), lsn=int(state[kernel.ROW_LSN]))
            if status < 0:
                raise ProtocolError("a row of the spool is not a valid xrow")


def compile_kernels() -> None:
    """Compile or load the kernels before the first client connects: later this would block all subscribers."""
    rows = np.zeros(0, np.uint8)
    read_only = rows.view()
    read_only.flags.writeable = False
    # Uncompressed blocks are views of the read buffer, which is read-only.
    for block in (rows, read_only):
        list(RowFramer(0, {}).packets(block))
    walk_blocks(read_only, 0, 0, 0, BLOCK_LIMIT, True, np.empty((4, 1), np.int64))
    decompressed_bound(read_only, 0, 0)


def snapshot_packets(path: Path, sync: int, limit: int = BLOCK_LIMIT) -> Iterator[bytes]:
    """Yield the packets of a snapshot's rows, as FETCH_SNAPSHOT sends them."""
    framer = RowFramer(sync, {})
    with BlockReader(path, limit) as reader:
        while rows := reader.read_blocks():
            for block in rows:
                yield from framer.packets(block, is_snapshot=True)


class LogPackets:
    """Reads the logs after a subscriber's vclock and encodes their rows as SUBSCRIBE sends them.

    `catalog` is refreshed before each call of `unsent_packets`; `framer` has the subscriber's vclock.
    """

    def __init__(self, catalog: SpoolCatalog, framer: RowFramer, treatment_rule: TreatmentRule) -> None:
        self._catalog, self._framer, self._treatment_rule = catalog, framer, treatment_rule
        self._reader: BlockReader | None = None
        self._owners: dict[int, str] = {}
        self._replacements = catalog.replacements
        self._applied_registrations = 0
        framer.on_stop_row = self._apply_registration
        self._open_first_log()
        self.versions = self._first_server_versions()
        """Versions of the servers whose rows are sent. The subscriber gets them once, so they apply to all its rows."""

    @property
    def vclock(self) -> dict[int, int]:
        """The vclock that the subscriber has after the rows that were encoded so far."""
        return array_to_vclock(self._framer.vclock)

    def close(self) -> None:
        """Close the file that is being read."""
        if self._reader is not None:
            self._reader.__exit__()
            self._reader = None

    def unsent_packets(self) -> Iterator[bytes]:
        """Yield packets of the rows that are in the spool and were not yielded before; may be called repeatedly.

        Raises:
            GapError: The logs do not continue from the subscriber's vclock.
            ConnectionLostError: The next log has rows of other server versions, or the spool was replaced or written
                again: the subscriber must subscribe again.
            UnknownInstanceError: The subscriber has a whitelist, and the spool does not name the instance of the next
                row.
        """
        while True:
            if self._catalog.replacements != self._replacements:
                raise ConnectionLostError("the spool was set aside or restored, or its log was written again")
            self._close_truncated_log()
            if self._reader is None:
                self._reader = self._open_covering_log()
                if self._reader is None:
                    return
            if ServerVersions.from_meta(self._reader.meta, self._reader.path.name) != self.versions:
                raise ConnectionLostError("the next rows are from a server of another version")
            rows = self._reader.read_blocks(self._catalog.sendable_end(self._reader.path))
            self._update_treatments()
            self._stop_at_next_registration()
            for block in rows:
                yield from self._framer.packets(block)
            if not rows and self._reader.is_empty and not self._reader.is_closed:
                # The daemon replaces a log without rows if the next rows are from another server version.
                self.close()
                return
            if not rows and not self._open_next_log():
                return

    def _open_first_log(self) -> None:
        with contextlib.suppress(GapError):  # `unsent_packets` reports it
            self._reader = self._open_covering_log()

    def _first_server_versions(self) -> ServerVersions:
        """Return the server versions of the open log, or of the newest file if no log is open."""
        newest = [*self._catalog.snapshots, *self._catalog.logs][-1:]
        meta = self._reader.meta if self._reader is not None else newest[0].meta if newest else None
        return ServerVersions("") if meta is None else ServerVersions.from_meta(meta, "")

    def _open_covering_log(self) -> BlockReader | None:
        """Open the newest log that begins at or before the subscriber's vclock; None if the spool has no newer rows."""
        logs = self._catalog.logs
        for file in reversed(logs):
            if self._covers_subscriber(file):
                return self._open_log(file)
        if not logs and is_at_most(
            self._needed_vclock(self._catalog.vclock, self._catalog.cluster), self.vclock
        ):
            return None
        raise self._gap_error(logs[0].meta.vclock if logs else self._catalog.vclock)

    def _open_next_log(self) -> bool:
        """Open the next log if the current one was read to its end; return whether a log was opened."""
        reader = self._reader
        names = [file.path for file in self._catalog.logs]
        if reader is None or reader.path not in names:
            self.close()
            return reader is not None and bool(names) and self._reopen_log()
        index = names.index(reader.path)
        # A daemon that was killed behind a new snapshot does not close the log before it.
        if index + 1 == len(names) or not (reader.is_closed or self._catalog.has_next_log(reader.path)):
            return False
        following = self._catalog.logs[index + 1]
        if not self._covers_subscriber(following):
            raise self._gap_error(following.meta.vclock)
        self.close()
        self._reader = self._open_log(following)
        return True

    def _close_truncated_log(self) -> None:
        """Close the log if the daemon has truncated it below the rows that were sent; the daemon fetches them again."""
        reader = self._reader
        if reader is None or reader.is_empty:
            return
        if reader.position > self._catalog.sendable_end(reader.path):
            self.close()

    def _reopen_log(self) -> bool:
        self._reader = self._open_covering_log()
        return self._reader is not None

    def _open_log(self, file: SpoolFile) -> BlockReader:
        self._owners, self._applied_registrations = dict(self._catalog.id_owners_at_start(file.path)), 0
        return BlockReader(file.path, self._catalog.limit)

    def _update_treatments(self) -> None:
        """Set the treatments of the rows up to the next row that registers an instance."""
        self._framer.treatments = self._treatment_rule({**self._catalog.first_id_owners, **self._owners})

    def _stop_at_next_registration(self) -> None:
        path = None if self._reader is None else self._reader.path
        following = (
            () if path is None else self._catalog.registrations(path)[self._applied_registrations :][:1]
        )
        self._framer.stop_row[:] = (following[0].origin_id, following[0].lsn) if following else (0, 0)

    def _apply_registration(self) -> None:
        if self._reader is not None:
            registered = self._catalog.registrations(self._reader.path)[self._applied_registrations]
            self._owners[registered.replica_id] = registered.instance_uuid
            self._applied_registrations += 1
            self._update_treatments()
        self._stop_at_next_registration()

    def _needed_vclock(self, vclock: Vclock, owners: Mapping[int, str]) -> dict[int, int]:
        """Return a vclock without the ids whose rows the subscriber does not get (`LEFT_OUT`)."""
        treatments = self._treatment_rule(owners)
        return {i: lsn for i, lsn in without_local(vclock).items() if treatments[i]}

    def _covers_subscriber(self, file: SpoolFile) -> bool:
        """Return whether a log begins at or before the subscriber's vclock, so that no needed row is before the log."""
        return is_at_most(
            self._needed_vclock(file.meta.vclock, self._catalog.id_owners_at_start(file.path)), self.vclock
        )

    def _gap_error(self, vclock: Mapping[int, int]) -> GapError:
        return GapError(
            f"Missing .xlog file between LSN {sum(self.vclock.values())} {self.vclock} "
            f"and {sum(without_local(vclock).values())} {without_local(vclock)}"
        )
