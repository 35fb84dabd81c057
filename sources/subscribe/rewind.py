"""Detects a peer that was restored to an older state and then wrote other rows than it had sent before.

Such a server assigns lsns to new rows that other rows had before. Once it has written more rows than the spool has of
it, its vclock looks right, and its new rows would be added to the rows that it has lost. So *fingerprints*, hashes of
the last rows that each peer sent, are stored (`<spool>/history.json`). Before a stream begins, these rows are requested
again and compared.

Only rows of the same peer are compared, because the log of another member may rightly have another row under the same
lsn: a NOP for a skipped conflict, or a row that a trigger changed. NOPs are not compared, because a whitelist replaces
rows by NOPs. Timestamps are left out of the hash, because they change when a server fetches its own rows back from its
peers. `assignment.is_rewound` detects a server that has fewer rows than before.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from schemas.errors import ConnectionLostError, RewindError
from schemas.iproto import HeaderKey, RequestType
from sources.iproto.client import Connection
from sources.iproto.messages import Ballot, Subscription
from sources.iproto.row_stream import RowStream, TransactionChunk
from sources.subscribe.peer_state import PeerLink

HISTORY_FILE = "history.json"
FINGERPRINTS_PER_ID = 3
"""Maximum number of fingerprints that are stored per peer and replica id."""
FINGERPRINT_INTERVAL_SECONDS = 1.0
"""Least time between two stored fingerprints, in seconds; only the newest one may follow sooner."""
MAX_HASHED_BYTES = 1 << 20
"""Size in bytes of the longest transaction whose last row gets a fingerprint."""
NOP_DIGEST = hashlib.blake2b(bytes([RequestType.NOP]), digest_size=16).hexdigest()
"""The hash of any NOP row, which has no body."""


@dataclass(frozen=True)
class RowFingerprint:
    """Hash of the last row of a transaction that a peer sent. The fields are the keys in `history.json`."""

    replica_id: int
    tsn: int
    lsn: int
    """Replica id and lsn of the row; `tsn` is the lsn of the first row of its transaction."""
    digest: str
    """Hash of the row's type and body."""
    at: float = 0.0
    """When the row was received, by a monotonic clock, in seconds; 0 if it was read from the file."""


def last_row_fingerprints(chunk: TransactionChunk, received_at: float) -> Iterator[RowFingerprint]:
    """Yield a fingerprint of the last row of each replica id in a chunk that was received at this time."""
    for id_ in np.unique(chunk.replica_ids):
        number = int(np.flatnonzero(chunk.replica_ids == id_)[-1])
        begin = int(chunk.ends[number - 1]) if number else 0
        end = int(chunk.ends[number])
        if end - begin <= MAX_HASHED_BYTES:
            yield _fingerprint_of_last_row(chunk.rows[begin:end].tobytes(), int(id_), received_at)


def _fingerprint_of_last_row(rows: bytes, replica_id: int, received_at: float) -> RowFingerprint:
    """Return a fingerprint of the last row of a transaction; `rows` are its rows, encoded as in a log."""
    unpacker = msgpack.Unpacker(strict_map_key=False, raw=True, max_buffer_size=0)
    unpacker.feed(rows)
    header, begin = {}, 0
    while unpacker.tell() < len(rows):
        header = unpacker.unpack()
        begin = unpacker.tell()
        if header[HeaderKey.TYPE] != RequestType.NOP and begin < len(rows):
            unpacker.skip()
    kind, lsn = header[HeaderKey.TYPE], header[HeaderKey.LSN]
    digest = hashlib.blake2b(bytes([kind]) + rows[begin:], digest_size=16).hexdigest()
    return RowFingerprint(replica_id, lsn - header.get(HeaderKey.TSN, 0), lsn, digest, received_at)


class PeerHistory:
    """Stores fingerprints of the last rows of each peer that feeds one spool."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / HISTORY_FILE
        self._fingerprints: dict[str, dict[int, list[RowFingerprint]]] = {}
        self._is_saved = True

    def load(self) -> None:
        """Read the stored fingerprints from the file; there are none if it cannot be read."""
        self._fingerprints, self._is_saved = {}, True
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            for peer, fingerprints in stored.items():
                for fingerprint in fingerprints:
                    self._add_fingerprint(peer, RowFingerprint(**fingerprint))
        except (OSError, ValueError, TypeError, AttributeError):
            self._fingerprints = {}

    def save(self) -> None:
        """Write the fingerprints to the file if they have changed."""
        if self._is_saved:
            return
        rows = {
            peer: [
                asdict(fingerprint) | {"at": 0.0}
                for fingerprints in by_id.values()
                for fingerprint in fingerprints
            ]
            for peer, by_id in self._fingerprints.items()
        }
        temporary = self._path.with_name(f".{HISTORY_FILE}")
        temporary.write_text(json.dumps(rows), encoding="utf-8")
        temporary.replace(self._path)
        self._is_saved = True

    def clear(self) -> None:
        """Delete all fingerprints and the file, because a new spool begins."""
        self._fingerprints, self._is_saved = {}, True
        self._path.unlink(missing_ok=True)

    def record_chunk(self, peer_uuid: str, chunk: TransactionChunk, received_at: float) -> None:
        """Add fingerprints of the last rows of a chunk that a peer sent; the time is of a monotonic clock."""
        for fingerprint in last_row_fingerprints(chunk, received_at):
            self._add_fingerprint(peer_uuid, fingerprint)
            self._is_saved = False

    def comparable_fingerprints(
        self, peer_uuid: str, ballot: Ballot, vclock: Mapping[int, int]
    ) -> dict[int, list[RowFingerprint]]:
        """Return, by replica id, the fingerprints of rows that the peer's logs and the spool have; oldest first."""
        return {
            id_: usable
            for id_, fingerprints in self._fingerprints.get(peer_uuid, {}).items()
            if (
                usable := [
                    fingerprint
                    for fingerprint in fingerprints
                    if ballot.gc_vclock.get(id_, 0) < fingerprint.tsn
                    and fingerprint.lsn <= vclock.get(id_, 0)
                ]
            )
        }

    def _add_fingerprint(self, peer_uuid: str, fingerprint: RowFingerprint) -> None:
        if fingerprint.digest == NOP_DIGEST:
            return
        fingerprints = self._fingerprints.setdefault(peer_uuid, {}).setdefault(fingerprint.replica_id, [])
        # Rows of a truncated spool are fetched again.
        while fingerprints and fingerprints[-1].lsn >= fingerprint.lsn:
            fingerprints.pop()
        if (
            len(fingerprints) > 1
            and fingerprint.at - fingerprints[-2].at < FINGERPRINT_INTERVAL_SECONDS
            and fingerprint.at
        ):
            fingerprints.pop()
        fingerprints.append(fingerprint)
        del fingerprints[:-FINGERPRINTS_PER_ID]


async def compare_history(
    connection: Connection,
    link: PeerLink,
    instance_uuid: str,
    fingerprints: Mapping[int, list[RowFingerprint]],
    ballot: Ballot,
    limit: int,
) -> None:
    """Request rows again that a peer sent before, and raise an error if they differ now.

    The connection cannot be used for anything else afterwards.

    Raises:
        RewindError: A row differs from the one that was received before.
        IprotoError: The server refused, or the connection broke.
    """
    start = dict(ballot.vclock) | {id_: compared[0].tsn - 1 for id_, compared in fingerprints.items()}
    digests: dict[tuple[int, int], str] = {}
    reached = dict.fromkeys(fingerprints, 0)

    def receive(chunk: TransactionChunk) -> None:
        compared_lsns = {fingerprint.lsn for compared in fingerprints.values() for fingerprint in compared}
        for number in np.flatnonzero(np.isin(chunk.last_lsns, list(compared_lsns))):
            begin = int(chunk.ends[number - 1]) if number else 0
            rows = chunk.rows[begin : int(chunk.ends[number])].tobytes()
            if len(rows) <= MAX_HASHED_BYTES:
                fingerprint = _fingerprint_of_last_row(rows, int(chunk.replica_ids[number]), 0.0)
                digests[fingerprint.replica_id, fingerprint.lsn] = fingerprint.digest
        reached.update({id_: max(reached[id_], lsn) for id_, lsn in chunk.vclock.items() if id_ in reached})
        if (
            all(reached[id_] >= compared[-1].lsn for id_, compared in fingerprints.items())
            and not done.done()
        ):
            done.set_result(None)

    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    rows = RowStream(start, receive, link.name, limit)
    subscription = Subscription(
        link.replicaset_uuid or "", instance_uuid, start, link.version, frozenset(fingerprints)
    )
    await connection.subscribe(subscription, rows)
    end = connection.wire.end_of_stream
    futures: set[asyncio.Future[Any]] = {done, end}
    while not done.done():
        await asyncio.wait(futures, timeout=link.timing.answer_seconds, return_when=asyncio.FIRST_COMPLETED)
        if end.done() and not done.done():
            end.result()
            raise ConnectionLostError("the stream ended", peer=link.name)
        if (
            not done.done()
            and asyncio.get_running_loop().time() - connection.wire.last_received_at
            > link.timing.answer_seconds
        ):
            raise ConnectionLostError("the stream fell silent", peer=link.name)
    for id_, compared in fingerprints.items():
        for fingerprint in compared:
            if digests.get((id_, fingerprint.lsn)) != fingerprint.digest:
                raise RewindError(
                    f"row {fingerprint.lsn} of replica id {id_} differs from the one that was received",
                    peer=link.name,
                    advice="the server was restored from an older state and has written on: start with "
                    "--accept-rewind to begin a new spool, then rebuild the tables from its snapshot",
                )
