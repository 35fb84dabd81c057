"""Filters rows by the instance that made them, for a daemon with the option `origins`.

Rows of other instances become NOPs, so that the spool's vclock equals the master's. Rows that register instances,
define spaces, or confirm or roll back transactions are always written, because other rows depend on them. The rows of
`_cluster` say which instance, called the *owner*, a replica id belongs to. A relay filters before it sends
(`sources.relay`). Rows of a Tarantool are filtered here, in the order in which they are written to the spool, so the
rows of `_cluster` before a row decide about it.

With `feed: own_peer`, an instance's rows and the row of `_cluster` that registers it come in different streams. If
clocks differ, the instance's rows may be written first. So if an instance itself sends the rows of its id, it is their
owner. A row whose owner is not known is not written (`UnknownInstanceError`), because as a NOP a wanted row would be
lost.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np

from schemas.errors import ProtocolError, UnknownInstanceError
from schemas.iproto import VCLOCK_MAX, BodyKey, HeaderKey, RequestType, SystemSpace, type_name
from sources.iproto.kernels import wire as kernel
from sources.iproto.kernels.filter import next_registering_transaction, replace_unwanted_rows
from sources.iproto.row_stream import TransactionChunk
from sources.spool.catalog import SpoolCatalog
from sources.xlog.format.arrays import Bytes, Ints
from sources.xlog.stream.origins import first_owners, id_assignment_of, unknown_instance_error


@dataclass(frozen=True)
class RowSender:
    """A peer that sends rows to the daemon."""

    uuid: str
    """The peer's instance uuid."""
    ids: frozenset[int] | None
    """The replica ids whose rows it sends; None: all."""
    cluster: Mapping[int, str] = field(default_factory=dict)
    """{replica id: instance uuid}, as the peer last reported it."""
    is_relay: bool = False
    """Whether the peer is a relay, which filters before it sends."""


class FilteredRows(NamedTuple):
    """The filtered rows of a chunk that can be written now."""

    chunk: TransactionChunk
    """The transactions before the first row whose owner is not known; there may be none."""
    error: UnknownInstanceError | None
    """Why the other transactions cannot be written; None if there are no others."""


class OriginWhitelist:
    """Replaces rows of unwanted instances by NOPs, in the order of a spool.

    `origins` are the uuids of the instances whose rows are written; if it is empty, all rows are.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self.origins = frozenset(origins)
        self.owners: dict[int, str] = {}
        """{replica id: instance uuid} after the last filtered row, also of expelled instances."""
        self._is_loaded = False
        if self.origins:
            compile_kernels()

    def invalidate(self) -> None:
        """Make the next `load` read the spool again, because rows were written that this object has not filtered."""
        self._is_loaded = False

    def load(self, directory: Path) -> None:
        """Read from a spool which instance each replica id means at its end, unless this is known already."""
        if not self.origins or self._is_loaded:
            return
        catalog = SpoolCatalog(directory)
        catalog.refresh()
        self.owners = dict(catalog.last_id_owners)
        self._is_loaded = True

    def filter(self, chunk: TransactionChunk, senders: Collection[RowSender]) -> FilteredRows:
        """Return the rows to write for a chunk that continues the spool; `senders` are all peers that send rows.

        Each registration in the chunk is valid for the transactions after it. If only a part of the chunk can be
        written, the caller drops the rest, receives its rows again, and passes them then.
        """
        if not self.origins:
            return FilteredRows(chunk, None)
        count = int(chunk.last_lsns.size)
        registering = _registering_transactions(chunk)
        output = _FilterOutput(chunk)
        for number, cluster_rows in [*registering, (count - 1, [])]:
            later = [row for later_number, rows in registering if later_number >= number for row in rows]
            later_owners = first_owners(later)
            treatments = np.full(VCLOCK_MAX, kernel.UNKNOWN, np.int64)
            for id_ in np.flatnonzero(np.bincount(chunk.replica_ids, minlength=VCLOCK_MAX)).tolist():
                treatments[id_] = self._treatment_of_id(id_, senders, later_owners)
            if not output.extend(number + 1, treatments):
                break
            for row in cluster_rows:
                registered = id_assignment_of(row)
                if registered is not None:
                    self.owners[registered.replica_id] = registered.instance_uuid
        written = output.chunk()
        if written.ends.size == count:
            return FilteredRows(written, None)
        at = written.ends.size
        error = unknown_instance_error(
            int(chunk.replica_ids[at]),
            lsn=int(chunk.last_lsns[at]),
            advice="the peers are asked again; if none of them knows it, begin a new spool with a snapshot",
        )
        return FilteredRows(written, error)

    def _treatment_of_id(
        self, id_: int, senders: Collection[RowSender], later_owners: Mapping[int, str | None]
    ) -> int:
        sender = next((one for one in senders if one.ids is None or id_ in one.ids), None)
        if sender is not None and sender.is_relay:
            return kernel.SENT
        owner = self._owner_of_id(id_, sender, later_owners)
        if owner is None:
            return kernel.UNKNOWN
        return kernel.SENT if owner in self.origins else kernel.AS_NOP

    def _owner_of_id(
        self, id_: int, sender: RowSender | None, later_owners: Mapping[int, str | None]
    ) -> str | None:
        """Return the uuid of the instance that owns an id, or None if it is not known.

        A sender of only some ids that reports this id as its own is the owner. Otherwise the last registration before
        the rows counts; without one, the first registration after them (`later_owners`); without that, what the sender
        reports, because a spool without a snapshot lacks older rows of `_cluster`.
        """
        reported = None if sender is None else sender.cluster.get(id_)
        if sender is not None and sender.ids is not None and reported == sender.uuid:
            return sender.uuid
        if id_ not in self.owners:
            if id_ in later_owners:
                return later_owners[id_]
            if reported is not None:
                # Valid up to a registration, also if the instance is expelled before that.
                self.owners[id_] = reported
        return self.owners.get(id_)


class _FilterOutput:
    """Collects the filtered transactions of a chunk, in a buffer that grows."""

    def __init__(self, chunk: TransactionChunk) -> None:
        self._source = chunk
        self._out: Bytes = np.empty(chunk.rows.size + kernel.ROW_OVERHEAD_BYTES, np.uint8)
        self._ends: Ints = np.empty(chunk.ends.size, np.int64)
        self._state: Ints = np.zeros(kernel.STATE_SIZE, np.int64)

    def extend(self, stop: int, treatments: Ints) -> bool:
        """Add the transactions before index `stop`; stop earlier and return False at a row whose owner is not known."""
        source = self._source
        while True:
            status = replace_unwanted_rows(
                *(source.rows, source.ends, source.replica_ids, stop, treatments),
                *(self._state, self._out, self._ends),
            )
            if status < 0:
                raise ProtocolError("a received row is not a valid xrow")
            if status != kernel.OUTPUT_FULL:
                return bool(status == kernel.END_OF_INPUT)
            size = max(2 * self._out.size, int(self._state[kernel.NEEDED_BYTES]))
            self._out = np.concatenate([self._out, np.empty(size - self._out.size, np.uint8)])

    def chunk(self) -> TransactionChunk:
        """Return the transactions that were added so far."""
        count, written = int(self._state[kernel.COUNT]), int(self._state[kernel.WRITTEN])
        source = self._source
        return TransactionChunk(
            self._out[:written],
            self._ends[:count],
            source.timestamps[:count],
            source.replica_ids[:count],
            source.last_lsns[:count],
        )


def _registering_transactions(chunk: TransactionChunk) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return (index in the chunk, decoded rows of `_cluster`) of each transaction with such rows."""
    found = []
    number = int(next_registering_transaction(chunk.rows, chunk.ends, 0))
    while 0 <= number < chunk.ends.size:
        begin = int(chunk.ends[number - 1]) if number else 0
        found.append((number, list(_cluster_rows(chunk.rows[begin : int(chunk.ends[number])].tobytes()))))
        number = int(next_registering_transaction(chunk.rows, chunk.ends, number + 1))
    if number < 0:
        raise ProtocolError("a received row is not a valid xrow")
    return found


def _cluster_rows(rows: bytes) -> Iterator[dict[str, Any]]:
    unpacker = msgpack.Unpacker(strict_map_key=False, unicode_errors="surrogateescape", max_buffer_size=0)
    unpacker.feed(rows)
    while unpacker.tell() < len(rows):
        kind = unpacker.unpack()[HeaderKey.TYPE]
        body = {} if kind == RequestType.NOP else unpacker.unpack()
        if body.get(BodyKey.SPACE_ID) == SystemSpace.CLUSTER:
            tuple_ = body.get(BodyKey.TUPLE)
            packed = None if tuple_ is None else msgpack.packb(tuple_, unicode_errors="surrogateescape")
            is_update = kind == RequestType.UPDATE
            yield {
                "type": type_name(kind),
                "position": 0,
                "tuple": None if is_update else packed,
                "operations": packed if is_update else None,
                "key": msgpack.packb(body.get(BodyKey.KEY)),
                "index_base": body.get(BodyKey.INDEX_BASE),
            }


def compile_kernels() -> None:
    """Compile or load the kernels before the first row arrives: later this would delay acknowledgements."""
    nothing = np.zeros(0, np.int64)
    empty = TransactionChunk(np.zeros(0, np.uint8), nothing, np.zeros(0), nothing, nothing)
    _registering_transactions(empty)
    _FilterOutput(empty).extend(0, np.zeros(VCLOCK_MAX, np.int64))
