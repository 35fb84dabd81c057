"""Detects a peer that was restored to an older state: its rows differ from those that it sent before.

A server may be restored to an older state and then write again. It then assigns lsns to new rows that it has already
assigned to other rows. Once it has written more rows than were received, its vclock looks right, and its new rows would
be added to the rows of another history. So hashes of the last rows that each peer sent are stored
(`<spool>/history.json`), and before a stream begins, these rows are requested again and compared.

Only rows of the same peer are compared: the log of another member may rightly have another row under the same lsn (a
NOP for a skipped conflict, or a row that a trigger changed). NOPs are not compared: a whitelist replaces rows by NOPs.
Timestamps are left out of the hash: a server that fetches its own rows back from its peers sets them again.
`assignment.is_rewound` detects a server that has fewer rows than before.
"""

from __future__ import annotations

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
from sources.iproto.inflow import RowStream, TransactionChunk
from sources.iproto.messages import Ballot, Subscription
from sources.subscribe.link import PeerLink

HISTORY_FILE = "history.json"
MARKS_PER_ORIGIN = 3
"""Maximum number of marks that are stored per peer and origin."""
MARK_SECONDS = 1.0
"""Least time between two stored marks, in seconds; only the newest one may be closer."""
LARGEST_TRANSACTION = 1 << 20
"""Longest transaction whose last row is hashed, in bytes."""
NOP_DIGEST = hashlib.blake2b(bytes([RequestType.NOP]), digest_size=16).hexdigest()
"""The hash of any NOP row, which has no body."""


@dataclass(frozen=True)
class HistoryMark:
    """Hash of the last row of a transaction that a peer sent.

    Parameters
    ----------
    replica_id, tsn, lsn : int
        Replica id and lsn of the row; `tsn` is the lsn of the first row of its transaction.
    digest : str
        Hash of the row's type and body.
    at : float
        When the row was received, in seconds of a monotonic clock.

    """

    replica_id: int
    tsn: int
    lsn: int
    digest: str
    at: float = 0.0


def last_marks(chunk: TransactionChunk, at: float) -> Iterator[HistoryMark]:
    """Yield a mark of the last row of each replica id in a chunk."""
    for id_ in np.unique(chunk.replicas):
        number = int(np.flatnonzero(chunk.replicas == id_)[-1])
        begin = int(chunk.ends[number - 1]) if number else 0
        end = int(chunk.ends[number])
        if end - begin <= LARGEST_TRANSACTION:
            yield _mark_last_row(chunk.rows[begin:end].tobytes(), int(id_), at)


def _mark_last_row(rows: bytes, replica_id: int, at: float) -> HistoryMark:
    """Return a mark of the last row of a transaction, whose rows are encoded as in a log."""
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
    return HistoryMark(replica_id, lsn - header.get(HeaderKey.TSN, 0), lsn, digest, at)


class PeerHistory:
    """Stores marks of the last rows of each peer that feeds one spool."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / HISTORY_FILE
        self._marks: dict[str, dict[int, list[HistoryMark]]] = {}
        self._is_saved = True

    def load(self) -> None:
        """Read the stored marks; a file that cannot be read counts as empty."""
        self._marks, self._is_saved = {}, True
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            for peer, marks in stored.items():
                for mark in marks:
                    self._add(peer, HistoryMark(**mark))
        except (OSError, ValueError, TypeError, AttributeError):
            self._marks = {}

    def save(self) -> None:
        """Write the marks if they have changed.

        Raises
        ------
        OSError
            The file cannot be written.

        """
        if self._is_saved:
            return
        rows = {
            peer: [asdict(mark) | {"at": 0.0} for marks in by_id.values() for mark in marks]
            for peer, by_id in self._marks.items()
        }
        temporary = self._path.with_name(f".{HISTORY_FILE}")
        temporary.write_text(json.dumps(rows), encoding="utf-8")
        temporary.replace(self._path)
        self._is_saved = True

    def forget(self) -> None:
        """Delete all marks, since a new spool begins."""
        self._marks, self._is_saved = {}, True
        self._path.unlink(missing_ok=True)

    def remember(self, peer: str, chunk: TransactionChunk, at: float) -> None:
        """Add marks of the last rows of a chunk that a peer sent."""
        for mark in last_marks(chunk, at):
            self._add(peer, mark)
            self._is_saved = False

    def comparable_marks(
        self, peer: str, ballot: Ballot, vclock: Mapping[int, int]
    ) -> dict[int, list[HistoryMark]]:
        """Return, by replica id, the peer's marks whose rows its logs and the spool still have; oldest first."""
        return {
            id_: usable
            for id_, marks in self._marks.get(peer, {}).items()
            if (
                usable := [
                    mark
                    for mark in marks
                    if ballot.gc_vclock.get(id_, 0) < mark.tsn and mark.lsn <= vclock.get(id_, 0)
                ]
            )
        }

    def _add(self, peer: str, mark: HistoryMark) -> None:
        if mark.digest == NOP_DIGEST:
            return
        marks = self._marks.setdefault(peer, {}).setdefault(mark.replica_id, [])
        while marks and marks[-1].lsn >= mark.lsn:  # the spool was truncated, and rows are fetched again
            marks.pop()
        if len(marks) > 1 and mark.at - marks[-2].at < MARK_SECONDS and mark.at:
            marks.pop()
        marks.append(mark)
        del marks[:-MARKS_PER_ORIGIN]


async def compare_history(
    connection: Connection,
    link: PeerLink,
    instance_uuid: str,
    marks: Mapping[int, list[HistoryMark]],
    ballot: Ballot,
    limit: int,
) -> None:
    """Request rows again that a peer sent before, and raise an error if they differ now.

    `marks` come from `PeerHistory.comparable_marks`, and `ballot` shows that the peer has all these rows. The
    connection cannot be used for anything else afterwards.

    Raises
    ------
    RewindError
        A row differs from the received one.
    IprotoError
        The server refused, or the connection broke.

    """
    start = dict(ballot.vclock) | {id_: compared[0].tsn - 1 for id_, compared in marks.items()}
    digests: dict[tuple[int, int], str] = {}
    reached = dict.fromkeys(marks, 0)

    def receive(chunk: TransactionChunk) -> None:
        compared_lsns = {mark.lsn for compared in marks.values() for mark in compared}
        for number in np.flatnonzero(np.isin(chunk.lsns, list(compared_lsns))):
            begin = int(chunk.ends[number - 1]) if number else 0
            rows = chunk.rows[begin : int(chunk.ends[number])].tobytes()
            if len(rows) <= LARGEST_TRANSACTION:
                mark = _mark_last_row(rows, int(chunk.replicas[number]), 0.0)
                digests[mark.replica_id, mark.lsn] = mark.digest
        reached.update({id_: max(reached[id_], lsn) for id_, lsn in chunk.vclock.items() if id_ in reached})
        if all(reached[id_] >= compared[-1].lsn for id_, compared in marks.items()) and not done.done():
            done.set_result(None)

    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    rows = RowStream(start, receive, link.name, limit)
    subscription = Subscription(
        link.replicaset_uuid or "", instance_uuid, start, link.version, frozenset(marks)
    )
    await connection.subscribe(subscription, rows)
    end = connection.wire.end_of_stream
    futures: set[asyncio.Future[Any]] = {done, end}
    while not done.done():
        await asyncio.wait(futures, timeout=link.timing.answer, return_when=asyncio.FIRST_COMPLETED)
        if end.done() and not done.done():
            end.result()
            raise ConnectionLostError("the stream ended", peer=link.name)
        if (
            not done.done()
            and asyncio.get_running_loop().time() - connection.wire.last_received_at > link.timing.answer
        ):
            raise ConnectionLostError("the stream fell silent", peer=link.name)
    for id_, compared in marks.items():
        for mark in compared:
            if digests.get((id_, mark.lsn)) != mark.digest:
                raise RewindError(
                    f"row {mark.lsn} of replica id {id_} differs from the one that was received",
                    peer=link.name,
                    advice="the server was restored from an older state and has written on: start with "
                    "--accept-rewind to begin a new spool, then rebuild the tables from its snapshot",
                )
