"""Compares one space of one replicaset with a live server: first by pages, then differing keys once more.

Pages are read while server and stream work, so at the first comparison any key that has just changed may differ. A
differing key is compared again like this:

1. the tables are at epoch A; the server must have at least A's vclock;
2. the server's tuple is read, then the server's vclock, W;
3. the tables must come to W, at epoch B.

If the log does not change the key between A and B, the tuple and the tables' version at B must be equal. A server shows
a change already while it is written to its log, so a difference counts only if it appears in two such comparisons, with
the same two tuples. `jobs.prove` connects and stores the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from observe.proof.epoch_tables import EpochTables
from observe.proof.result import Difference, SpaceProof
from observe.proof.sorted_versions import SortedVersions, SpaceKeys, keys_of_space, page_of, sorted_versions
from schemas.errors import AggregatorError, ConnectionLostError, WarehouseError
from schemas.space import Space
from sources.iproto.client import Connection
from sources.iproto.space_pages import FIRST_ROWS, SpacePages, next_limit

LOOKS = 6
"""Number of repeated comparisons of a key until its result stays open."""

KEYS_OF_A_LOOK = 5000
"""Number of keys that are compared again together."""

DIFFERENCES = 1000
"""Number of differences after which a comparison ends."""

POLL_SECONDS = 0.3

PAUSE_SECONDS = 1.0
"""Seconds between two comparisons: by then a server has written to its log what it already shows."""


@dataclass(frozen=True)
class Compared:
    """The space, its table and the server to compare.

    Parameters
    ----------
    space : Space
    table : str
        The space's.
    replicaset : int
        The replicaset's id.
    uuid : str
        The replicaset's.
    peer : str
        The server.

    """

    space: Space
    table: str
    replicaset: int
    uuid: str
    peer: str


@dataclass(frozen=True)
class ProofLimits:
    """Limits of load and time.

    Parameters
    ----------
    rate : float or None
        Tuples per second that are read from a server, None: no limit.
    patience : float
        Seconds in which the tables must reach the server's vclock, and the server the tables' vclock.
    by_checksums : bool
        Whether pages are sent as checksums if the user may run Lua: less network traffic, but several times the
        processor time of plain SELECTs on the server (docs/benchmarks.md).

    """

    rate: float | None = None
    patience: float = 60.0
    by_checksums: bool = False


class Pace:
    """Limits the reading rate: waits after each page as long as its tuples may take."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due = time.monotonic()

    async def rest(self, rows: int) -> None:
        """Wait until that many more tuples are allowed."""
        if self._rate is not None:
            now = time.monotonic()
            self._due = max(self._due, now - 1.0) + rows / self._rate
            await asyncio.sleep(max(0.0, self._due - now))


class SpaceComparison:
    """Compares one space in several steps; `proof` runs them.

    Parameters
    ----------
    compared : Compared
    connection : Connection
        To the server.
    tables : callable
        Returns the tables at the newest epoch.
    limits : ProofLimits
    pace : Pace
        Shared by all spaces of a server.
    with_checksums : bool
        Whether the server computes page checksums.

    """

    def __init__(
        self,
        compared: Compared,
        connection: Connection,
        tables: Callable[[], EpochTables],
        limits: ProofLimits,
        pace: Pace,
        *,
        with_checksums: bool,
    ) -> None:
        self._compared, self._connection, self._tables = compared, connection, tables
        self._limits, self._pace, self._with_checksums = limits, pace, with_checksums
        self._pages = SpacePages(connection, compared.space.id)
        self._keys: SpaceKeys = keys_of_space(compared.space)
        self._rows = 0

    async def proof(self) -> SpaceProof:
        """Compare the space and return the result; raises only if the connection is lost."""
        begun, one = time.monotonic(), self._compared
        tables = self._tables()
        found = SpaceProof(one.table, one.uuid, one.peer, tables.epoch)
        try:
            batches = tables.own_versions(one.replicaset, one.table)
            suspects = await self._first_look(sorted_versions(batches, self._keys))
            found = replace(found, looked_again=len(suspects))
            for begin in range(0, len(suspects), KEYS_OF_A_LOOK):
                differences, moving = await self._looked_again(suspects[begin : begin + KEYS_OF_A_LOOK])
                found = replace(
                    found,
                    differences=(*found.differences, *differences),
                    moving=found.moving + moving,
                )
                if len(found.differences) >= DIFFERENCES:
                    break
        except ConnectionLostError:
            raise
        except AggregatorError as error:
            found = replace(found, error=str(error))
        return replace(found, rows=self._rows, seconds=time.monotonic() - begun)

    async def _first_look(self, versions: SortedVersions) -> list[bytes]:
        """Return the keys that differ, page by page."""
        suspects: dict[bytes, None] = {}
        after, limit, size = None, FIRST_ROWS, 0
        while True:
            rows, size, last, keys = await self._compared_page(versions, after, limit)
            suspects.update(dict.fromkeys(keys))
            self._rows += rows
            await self._pace.rest(rows)
            if rows < limit or last is None:
                return list(suspects)
            after, limit = last, next_limit(rows, size)

    async def _compared_page(
        self, versions: SortedVersions, after: bytes | None, limit: int
    ) -> tuple[int, int, bytes | None, Sequence[bytes]]:
        """Return the rows and bytes of a page, its last key, and the keys that differ."""
        if self._with_checksums:
            whole = await self._pages.checksum(after, limit)
            last = None if whole.last is None else self._key_of(whole.last)
            begin, end = self._range(versions, after, last if whole.rows == limit else None)
            if versions.is_equal(begin, end, whole.rows, whole.checksum):
                return whole.rows, whole.size, last, ()
        tuples = await self._pages.page(after, limit)
        page = page_of(tuples, self._keys)
        last = page.keys[-1].as_py() if tuples else None
        begin, end = self._range(versions, after, last if len(tuples) == limit else None)
        return len(tuples), sum(map(len, tuples)), last, versions.differing(begin, end, page)

    def _range(self, versions: SortedVersions, after: bytes | None, last: bytes | None) -> tuple[int, int]:
        begin = None if after is None else self._keys.bound(after)
        return versions.range_of(begin, None if last is None else self._keys.bound(last))

    def _key_of(self, tuple_: bytes) -> bytes:
        found: bytes = self._keys.of_tuples(pa.array([tuple_], pa.binary()))[0].as_py()
        return found

    async def _looked_again(self, keys: Sequence[bytes]) -> tuple[list[Difference], int]:
        """Return the differences of some keys, and the number of undecided keys."""
        left, found, before = list(keys), list[Difference](), dict[bytes, Difference]()
        for look in range(LOOKS):
            if look:
                await asyncio.sleep(PAUSE_SECONDS)
            differing, changed = await self._look(left)
            sure = [one for key, one in differing.items() if before.get(key) == one]
            found += sure
            left = list((differing.keys() | changed) - {one.key for one in sure})
            if not left:
                break
            before = differing
        return found, len(left)

    async def _look(self, keys: Sequence[bytes]) -> tuple[dict[bytes, Difference], set[bytes]]:
        """Return the differences of some keys, and the keys that differ because the log has just changed them."""
        one = self._compared
        before = self._tables()
        await self._server_at(before.vclocks.get(one.uuid, {}))
        theirs = await self._pages.tuples_at(keys)
        await self._pace.rest(len(keys))
        tables = await self._tables_at((await self._connection.vote()).vclock)
        ours = tables.own_tuples(one.replicaset, one.table, keys)
        unlike = {
            key: Difference(key, server, here)
            for key, server, here in zip(keys, theirs, ours, strict=True)
            if server != here
        }
        logged = tables.changed_keys(one.replicaset, one.space.id, self._keys.plan, before.epoch)
        changed = set(unlike) if logged is None else logged & unlike.keys()
        return {key: found for key, found in unlike.items() if key not in changed}, changed

    async def _server_at(self, vclock: Mapping[int, int]) -> None:
        """Wait until the server has a vclock, since it may be a replica that is behind."""
        deadline = time.monotonic() + self._limits.patience
        while not _covers((await self._connection.vote()).vclock, vclock):
            _check_time(deadline, "the server does not reach the vclock of the tables")
            await asyncio.sleep(POLL_SECONDS)

    async def _tables_at(self, vclock: Mapping[int, int]) -> EpochTables:
        """Wait until the tables have a vclock, and return them."""
        deadline = time.monotonic() + self._limits.patience
        while not _covers((tables := self._tables()).vclocks.get(self._compared.uuid, {}), vclock):
            _check_time(deadline, "the tables do not reach the vclock of the server")
            await asyncio.sleep(POLL_SECONDS)
        return tables


def _covers(vclock: Mapping[int, int], wanted: Mapping[int, int]) -> bool:
    """Return whether a vclock covers another one, except component 0 and ids out of range, which are local."""
    return all(vclock.get(id_, 0) >= lsn for id_, lsn in wanted.items() if 0 < id_ < 32)


def _check_time(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise WarehouseError(what, advice="is `aggregator run` running, and does it keep up?")
