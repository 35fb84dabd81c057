"""Converts a server's stream of rows into chunks of complete transactions, encoded as in a log file.

`RowStream` decodes the rows of SUBSCRIBE, `SnapshotStream` those of FETCH_SNAPSHOT. Both receive bytes from `wire` and
pass the decoded rows to a callback; neither uses a socket. The kernels in `kernels.rows` do the work per row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from schemas.errors import ProtocolError, StreamGapError
from schemas.iproto import VCLOCK_MAX
from sources.iproto.kernels import wire as kernel
from sources.iproto.kernels.rows import convert_snapshot_rows, convert_stream_rows
from sources.xlog.format.arrays import Bytes, Ints
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.damage import transaction_limit_error

OUTPUT_BYTES = 1 << 20
"""Initial size of the buffer for decoded rows, in bytes."""

CHUNK_TRANSACTIONS = 1 << 15
"""Maximum number of transactions in a chunk."""

PACKET_OVERHEAD_BYTES = 64
"""Maximum number of bytes by which a packet is longer than its row in the log."""


@dataclass(frozen=True)
class TransactionChunk:
    """Complete transactions, encoded as in a log file."""

    rows: Bytes
    """The bytes of the rows: headers and bodies."""
    ends: Ints
    """Position in `rows`, in bytes, at which each transaction ends (int64[n])."""
    timestamps: npt.NDArray[np.float64]
    """Timestamp of the last row of each transaction, seconds since 1970 UTC, by the server's clock (float64[n])."""
    replica_ids: Ints
    last_lsns: Ints
    """Replica id of the instance that made each transaction, and the lsn of its last row (int64[n])."""

    @property
    def vclock(self) -> dict[int, int]:
        """The highest lsn of each replica id in the chunk."""
        top = np.zeros(VCLOCK_MAX, np.int64)
        np.maximum.at(top, self.replica_ids, self.last_lsns)
        return array_to_vclock(top)


class SinkProgress(NamedTuple):
    """How many bytes of a buffer a sink has processed, and what it waits for."""

    rest_begin: int
    """Position in the buffer at which the unprocessed rest begins."""
    needed_bytes: int
    """Length that the rest must have before the next packet is complete, in bytes."""
    is_non_row_packet: bool
    """Whether the rest begins with a complete packet that is not a row, such as an error. The sink leaves it to the
    caller.
    """


class Sink(Protocol):
    """Receives the bytes of a stream; implemented by `RowStream` and `SnapshotStream`."""

    def feed(self, buffer: Bytes, begin: int, end: int) -> SinkProgress:
        """Process the complete packets in `buffer[begin:end]`, up to one that is not a row."""


def vclock_to_array(vclock: Mapping[int, int]) -> Ints:
    """Return a vclock as an array of 32 lsns, indexed by replica id; the lsn of id 0 becomes 0."""
    array = np.zeros(VCLOCK_MAX, np.int64)
    for id_, lsn in vclock.items():
        array[id_] = lsn if id_ else 0
    return array


def array_to_vclock(vclock: Ints) -> dict[int, int]:
    """Return {replica id: lsn} from an array of lsns by replica id; ids with lsn 0 are left out."""
    return {int(id_): int(vclock[id_]) for id_ in np.flatnonzero(vclock)}


class _KernelOutput:
    """A kernel's state and its output buffer, which may end with an incomplete transaction."""

    def __init__(self, limit: int, peer: str) -> None:
        self._limit, self._peer = limit, peer
        self._least = min(OUTPUT_BYTES, limit + kernel.ROW_OVERHEAD_BYTES)
        self.out: Bytes = np.empty(self._least, np.uint8)
        self.state: Ints = np.zeros(kernel.STATE_SIZE, np.int64)

    def take_complete_transactions(self) -> Bytes:
        """Remove and return the complete transactions; the incomplete one stays in the buffer."""
        committed, written = int(self.state[kernel.COMMITTED]), int(self.state[kernel.WRITTEN])
        complete, rest = self.out[:committed].copy(), self.out[committed:written].copy()
        if rest.size + kernel.ROW_OVERHEAD_BYTES <= self._least < self.out.size:
            self.out = np.empty(self._least, np.uint8)  # frees the memory of a large transaction
        self.out[: rest.size] = rest
        self.state[kernel.WRITTEN] -= committed
        self.state[kernel.COMMITTED] = self.state[kernel.COUNT] = 0
        return complete

    def grow(self) -> None:
        """Enlarge the buffer for the next row; raise TransactionLimitError if the transaction exceeds the limit."""
        need, most = int(self.state[kernel.NEEDED_BYTES]), self._limit + kernel.ROW_OVERHEAD_BYTES
        if need > most:
            raise transaction_limit_error(self._limit, peer=self._peer)
        size = min(max(2 * self.out.size, need), most)
        self.out = np.concatenate([self.out, np.empty(size - self.out.size, np.uint8)])

    def needed_bytes(self, status: int) -> int:
        """Return the size of the next packet; raise TransactionLimitError if it exceeds any accepted transaction.

        `status` is the kernel's result.
        """
        need = int(self.state[kernel.NEEDED_BYTES])
        if status == kernel.END_OF_INPUT and need > self._limit + PACKET_OVERHEAD_BYTES:
            raise transaction_limit_error(self._limit, peer=self._peer)
        return need


class RowStream:
    """Decodes the rows that a server sends after SUBSCRIBE, and checks that no lsn is missing.

    Args:
        vclock: The vclock after which rows are requested. Rows above it are passed to `emit`; rows up to it are counted
            (`repeated_rows`) and dropped.
        emit: Called with each chunk of complete transactions.
        peer: The server's name in errors.
        limit: Longest accepted transaction in bytes, as encoded in a log.
    """

    def __init__(
        self,
        vclock: Mapping[int, int],
        emit: Callable[[TransactionChunk], None],
        peer: str,
        limit: int = BLOCK_LIMIT,
    ) -> None:
        self.vclock = vclock_to_array(vclock)
        self.row_counts: Ints = np.zeros(VCLOCK_MAX, np.int64)
        """int64[32]: by replica id, the number of rows that were passed to `emit`."""
        self._emit, self._peer = emit, peer
        self._buffers = _KernelOutput(limit, peer)
        self._transactions = np.empty((3, CHUNK_TRANSACTIONS), np.int64)
        self._times = np.empty(CHUNK_TRANSACTIONS, np.float64)

    @property
    def repeated_rows(self) -> int:
        """Number of received rows that were dropped, because the requested vclock includes them."""
        return int(self._buffers.state[kernel.REPEATED])

    @property
    def heartbeat_count(self) -> int:
        """Number of received heartbeats."""
        return int(self._buffers.state[kernel.HEARTBEATS])

    def feed(self, buffer: Bytes, begin: int, end: int) -> SinkProgress:
        """Process complete packets; see `Sink.feed`.

        Raises:
            StreamGapError: An lsn is missing, or a transaction is incomplete.
            TransactionLimitError: A transaction is larger than the limit.
            ProtocolError: The bytes are not packets or rows.
        """
        state = self._buffers.state
        state[kernel.POSITION] = begin
        while True:
            status = convert_stream_rows(
                *(buffer, end, self.vclock, self.row_counts, state, self._buffers.out),
                *(self._transactions, self._times),
            )
            count = int(state[kernel.COUNT])
            if count:
                ends, replica_ids, last_lsns = self._transactions[:, :count].copy()
                times = self._times[:count].copy()
                complete = self._buffers.take_complete_transactions()
                self._emit(TransactionChunk(complete, ends, times, replica_ids, last_lsns))
            elif status == kernel.OUTPUT_FULL:
                self._buffers.grow()
            if status < 0:
                raise self._protocol_error(status)
            if status != kernel.OUTPUT_FULL:
                return SinkProgress(
                    int(state[kernel.POSITION]),
                    self._buffers.needed_bytes(status),
                    status == kernel.OTHER_PACKET,
                )

    def _protocol_error(self, status: int) -> ProtocolError:
        state = self._buffers.state
        if status in (kernel.LSN_GAP, kernel.CUT_TRANSACTION):
            replica = int(state[kernel.REPLICA])
            what = "rows are missing in" if status == kernel.LSN_GAP else "a transaction is cut in"
            return StreamGapError(
                f"{what} the server's stream",
                peer=self._peer,
                replica_id=replica,
                lsn=int(state[kernel.ROW_LSN]),
                wanted=int(self.vclock[replica]) + 1,
            )
        return _protocol_error(status, self._peer)


class SnapshotStream:
    """Decodes the rows that a server sends after FETCH_SNAPSHOT; they have no transactions.

    Args:
        emit: Called with the bytes of one or more rows, encoded as in a `.snap` file.
        peer: The server's name in errors.
        now: The timestamp for all rows, seconds since 1970 UTC; by default the current time. The server sends none.
        limit: Longest accepted row in bytes, as encoded in a log.
    """

    def __init__(
        self,
        emit: Callable[[Bytes], None],
        peer: str,
        now: float | None = None,
        limit: int = BLOCK_LIMIT,
    ) -> None:
        self._emit, self._peer = emit, peer
        self._now = time.time() if now is None else now
        self._buffers = _KernelOutput(limit, peer)

    @property
    def row_count(self) -> int:
        """Number of rows received so far."""
        return int(self._buffers.state[kernel.NEXT_LSN])

    def feed(self, buffer: Bytes, begin: int, end: int) -> SinkProgress:
        """Process complete packets; see `Sink.feed`.

        Raises:
            ProtocolError: The bytes are not packets or rows, or a row is not an INSERT.
        """
        state = self._buffers.state
        state[kernel.POSITION] = begin
        while True:
            status = convert_snapshot_rows(buffer, end, self._now, state, self._buffers.out)
            if state[kernel.COMMITTED]:
                self._emit(self._buffers.take_complete_transactions())
            elif status == kernel.OUTPUT_FULL:
                self._buffers.grow()
            if status < 0:
                raise _protocol_error(status, self._peer)
            if status != kernel.OUTPUT_FULL:
                return SinkProgress(
                    int(state[kernel.POSITION]),
                    self._buffers.needed_bytes(status),
                    status == kernel.OTHER_PACKET,
                )


_DAMAGE_TEXTS = {
    kernel.BAD_LENGTH: "a packet does not begin with a valid length",
    kernel.BAD_HEADER: "a packet's header is not an xrow header",
    kernel.BAD_ID: "a row has no replica id of 1..31 or no lsn",
    kernel.BAD_ROW: "a snapshot has a row that is not an INSERT",
    kernel.BAD_BODY: "a packet is not exactly one row that a log can contain",
}


def _protocol_error(status: int, peer: str) -> ProtocolError:
    return ProtocolError(_DAMAGE_TEXTS[status], peer=peer)


def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache, before the first row arrives.

    Later this would delay acknowledgements by seconds.
    """
    nothing = np.zeros(1, np.uint8)
    RowStream({}, lambda _: None, "").feed(nothing, 0, 0)
    SnapshotStream(lambda _: None, "").feed(nothing, 0, 0)
