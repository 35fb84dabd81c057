"""Writes the stream as files: appends transactions of the aggregator to a spool, and writes its snapshots.

The spool has the form that the subscription daemon writes, so the relay serves it like any other. Each block is synced
to the disk before the next one, since subscribers may already have it. `writer` chooses the rows and their order.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid as uuids
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.replication_out import bootstrap_rows, rows
from pipeline.replication_out.rows import OutgoingRow
from pipeline.replication_out.state import ServedRows, read_served_rows
from schemas.errors import SpoolError
from schemas.iproto import RequestType, SystemSpace
from sources.spool import state as spool_state
from sources.spool.acks import remove_expired_acks
from sources.spool.disk_space import removable_files, remove_files
from sources.spool.options import SpoolOptions, SpoolRetention
from sources.spool.spool import ServerVersions, Spool
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.writer import Fsync

logger = logging.getLogger(__name__)

SERVER_VERSIONS = ServerVersions(".".join(map(str, bootstrap_rows.SERVER_VERSION)))
NOP_APPEND_BYTES = 4 << 20
"""The approximate number of bytes of NOPs that are written at a time."""

SNAPSHOT_WRITE_ROWS = 256

NEW_SNAPSHOT_BYTES = 64 << 20
"""A new snapshot is written when the logs after the last one have this size, and at least the size of the snapshot."""


class Stream:
    """Writes the spool that subscribers follow; a context manager that locks it."""

    def __init__(
        self, directory: Path, max_block_bytes: int = BLOCK_LIMIT, forget_seconds: float = 86400.0
    ) -> None:
        self.directory, self._max_block_bytes = directory, max_block_bytes
        # Without subscribers, only the newest snapshot and the logs after it stay.
        self._keep = SpoolRetention(max_bytes=0, reader_expiry_seconds=forget_seconds, keeps_snapshot=True)
        self.spool = Spool(directory, SpoolOptions(fsync=Fsync.BLOCK, max_block_bytes=max_block_bytes))
        self.spool.versions = SERVER_VERSIONS
        self.served: ServedRows | None = None
        """What subscribers have; None before the first snapshot."""
        self.aggregator_id = 0
        """The aggregator's global id."""

    def __enter__(self) -> Stream:
        self.spool.__enter__()
        try:
            self.served = read_served_rows(self.directory, self._max_block_bytes)
        except BaseException:
            self.spool.__exit__()
            raise
        self.spool.versions = SERVER_VERSIONS
        return self

    def __exit__(self, *_: object) -> None:
        self.spool.__exit__()

    @property
    def vclock(self) -> Mapping[int, int]:
        """The vclock of the written rows, by global id."""
        return self.spool.vclock or {}

    @property
    def max_transaction_bytes(self) -> int:
        """The maximum size of a transaction: a transaction is in one block."""
        return self._max_block_bytes

    def set_signing_instance(self, aggregator_id: int, uuid: str) -> None:
        """Set the aggregator, whose replica id the rows have; raise SpoolError if the spool is another warehouse's."""
        if self.spool.instance_uuid is None:
            self.spool.instance_uuid = uuid
        if self.spool.instance_uuid != uuid:
            raise SpoolError(
                f"the stream is signed by {self.spool.instance_uuid}, the aggregator is {uuid}",
                spool=str(self.directory),
                advice="name an empty directory for another warehouse",
            )
        self.aggregator_id = aggregator_id

    def write(self, changes: Sequence[OutgoingRow], timestamp: float) -> None:
        """Append one transaction of the aggregator."""
        first = self.vclock.get(self.aggregator_id, 0) + 1
        data = rows.encode_transaction(changes, self.aggregator_id, first, timestamp)
        self.spool.append(np.frombuffer(data, np.uint8), {self.aggregator_id: first + len(changes) - 1})

    def put(self, space: SystemSpace, tuple_: bytes, timestamp: float) -> None:
        """Put a tuple into a system space, as a transaction of its own."""
        self.write([rows.replace_row(space, tuple_)], timestamp)
        self.served_rows.put(space, tuple_)

    def remove(self, space: SystemSpace, key: bytes, timestamp: float) -> None:
        """Remove a tuple from a system space, as a transaction of its own."""
        self.write([rows.delete_row(space, key)], timestamp)
        self.served_rows.remove(space, key)

    def write_with_epoch(self, changes: Sequence[OutgoingRow], epoch: bytes, timestamp: float) -> None:
        """Append one transaction that ends with `epoch`, the row of `_schema` with the epoch."""
        self.write([*changes, rows.replace_row(SystemSpace.SCHEMA, epoch)], timestamp)
        self.served_rows.put(SystemSpace.SCHEMA, epoch)

    def append_nops(self, vclock: Mapping[int, int], timestamp: float) -> None:
        """Append a NOP for each lsn of each instance, until the stream's vclock reaches the given one."""
        pending: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []
        reached: dict[int, int] = {}
        for replica_id, last in sorted(vclock.items()):
            first = self.vclock.get(replica_id, 0) + 1
            while first <= last:
                end = min(last, first + rows.NOPS_PER_TRANSACTION - 1)
                pending.append(rows.nop_rows(replica_id, first, end, timestamp))
                reached[replica_id], first = end, end + 1
                if sum(one.size for one in pending) >= NOP_APPEND_BYTES:
                    self.spool.append(np.concatenate(pending), reached)
                    pending.clear()
        if pending:
            self.spool.append(np.concatenate(pending), reached)

    def snapshot(
        self, vclock: Mapping[int, int], tuples: Iterable[tuple[int, bytes]], timestamp: float
    ) -> None:
        """Write a snapshot: new subscribers begin with it, and continue with the rows after its vclock.

        If the vclock is greater than the stream's, subscribers of earlier rows must begin again.
        """
        writer = self.spool.create_snapshot(vclock)
        count = 0
        try:
            found = iter(rows.snapshot_rows(tuples, timestamp))
            while part := list(itertools.islice(found, SNAPSHOT_WRITE_ROWS)):
                writer.write(part)
                count += len(part)
            writer.close()
        except BaseException:
            writer.abandon()
            writer.path.with_name(writer.path.name + ".inprogress").unlink(missing_ok=True)
            raise
        self.spool.continue_from(vclock)
        logger.info("%s: snapshot of %d rows at %s", self.directory, count, dict(vclock))
        self.remove_old_files()

    def begin_new_log(self, timestamp: float) -> None:
        """Begin a new log after a snapshot that was just written, and read the system rows of this snapshot.

        The log begins with a NOP. A running subscriber that has only earlier rows gets an error, since rows before the
        log are missing; when it is started again, it begins with the snapshot.
        """
        self.served = read_served_rows(self.directory, self._max_block_bytes)
        self.write([OutgoingRow(RequestType.NOP)], timestamp)

    @property
    def is_snapshot_due(self) -> bool:
        """Whether the logs after the newest snapshot are so large that a new one is due."""
        snapshots = spool_state.spool_files(self.directory, ".snap")
        logs = spool_state.spool_files(self.directory, ".xlog")
        if not snapshots:
            return False
        start = sum(snapshots[-1].meta.vclock.values())
        behind = sum(file.size for file in logs if sum(file.meta.vclock.values()) >= start)
        return behind >= max(NEW_SNAPSHOT_BYTES, snapshots[-1].size)

    def remove_old_files(self) -> None:
        """Remove the files before the newest snapshot, except those that a subscriber still needs."""
        now = time.time()
        snapshots = spool_state.spool_files(self.directory, ".snap")
        logs = spool_state.spool_files(self.directory, ".xlog")
        remove_files(
            removable_files(
                snapshots, logs, remove_expired_acks(self.directory, self._keep, now), self._keep, now
            )
        )

    @property
    def served_rows(self) -> ServedRows:
        """What subscribers have; raise SpoolError before the first snapshot."""
        if self.served is None:
            raise SpoolError("the stream has no snapshot yet", spool=str(self.directory))
        return self.served


def new_replicaset_uuid() -> str:
    """Return a replicaset uuid for a new stream: it differs for each, so subscribers cannot switch between streams."""
    return str(uuids.uuid4())


def system_tuples(served: ServedRows) -> Iterable[tuple[int, bytes]]:
    """Yield (space id, tuple) of the system rows that subscribers have, in an order that a server accepts."""
    order = (
        SystemSpace.SCHEMA,
        SystemSpace.SPACE,
        SystemSpace.INDEX,
        SystemSpace.USER,
        SystemSpace.PRIV,
        SystemSpace.CLUSTER,
    )
    for row in bootstrap_rows.COLLATIONS:
        yield int(SystemSpace.COLLATION), rows.pack(list(row))
    for space in order:
        for key in sorted(served.rows[space], key=_sort_key):
            yield int(space), served.rows[space][key]


def _sort_key(key: tuple[object, ...]) -> tuple[tuple[str, object], ...]:
    return tuple((type(part).__name__, part) for part in key)


def first_system_rows(replicaset_uuid: str) -> ServedRows:
    """Return the system rows of an empty replicaset: Tarantool's data dictionary, and the replicaset's uuid."""
    served = ServedRows()
    for space_id, values in bootstrap_rows.system_rows():
        if space_id in served.rows:
            served.put(space_id, rows.pack(list(values)))
    served.put(SystemSpace.SCHEMA, rows.pack(["cluster", replicaset_uuid]))
    return served
