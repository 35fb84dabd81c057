"""Compares one space of one replicaset with a live server: first page by page, then each differing key again.

If the primary index is a hash, pages have no order. Such a space is read as one page if it is small; else each key of
the tables is read from the server, and keys that only the server has are not found.

Pages are read while the server and the stream run, so at the first comparison a key that has just changed may differ.
A differing key is compared again as follows:

1. read the newest epoch A, and wait until the server's vclock covers A's vclock;
2. read the key's tuple from the server, then the server's vclock, W;
3. wait for an epoch B of the tables whose vclock covers W.

If the log does not change the key between A and B, the server's tuple and the tables' tuple at B must be equal. A
server shows a change before it is in the log, so a difference counts only if two such comparisons find the same two
tuples. `jobs.prove` opens the connection and stores the result.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from observe.log_rows.row_format import tuple_text
from observe.proof.epoch_tables import EpochTables
from observe.proof.sorted_versions import SortedVersions, SpaceKeys, server_page, sorted_versions, space_keys
from schemas.errors import AggregatorError, ConnectionLostError, WarehouseError
from schemas.space import Space
from sources.iproto.client import Connection
from sources.iproto.space_pages import FIRST_PAGE_ROWS, SpacePages, next_page_limit

MAX_COMPARISONS = 6
"""Maximum number of repeated comparisons of a key; after that the key has no result."""

KEYS_AT_ONCE = 5000
"""Number of keys whose tuples are read from the server by one call."""

MAX_DIFFERENCES = 1000
"""Number of differing keys after which the comparison of a space ends."""

EXAMPLES = 5
"""Maximum number of differing keys that a result shows; it counts all of them."""

POLL_SECONDS = 0.3
"""Seconds between two requests for a vclock that is waited for."""

WITHOUT_ORDER = (
    "keys that only the server has: its primary index is a hash, without an order in which to read pages"
)
"""What is skipped in a large space whose primary index is a hash."""

PAUSE_SECONDS = 1.0
"""Seconds between two comparisons of a key, enough for the server to write to its log a change that it shows."""


@dataclass(frozen=True)
class ComparedSpace:
    """A space with its table, its replicaset and the server to compare with.

    Parameters
    ----------
    space : Space
    table : str
    replicaset_id : int
    replicaset_uuid : str
    peer : str
        Name of the server.
    is_ordered : bool
        Whether the primary index has an order, by which the server can be read page by page.

    """

    space: Space
    table: str
    replicaset_id: int
    replicaset_uuid: str
    peer: str
    is_ordered: bool = True


@dataclass(frozen=True)
class ProofLimits:
    """Limits of a comparison's load and duration.

    Parameters
    ----------
    rate : float or None
        Tuples per second to read from a server; None: no limit.
    patience : float
        Seconds to wait until the tables have the server's vclock, and the server the tables' vclock.
    by_checksums : bool
        Whether the server sends checksums of pages, if the user may run Lua: less network traffic, but several times
        the processor time of plain SELECTs on the server (docs/benchmarks.md).

    """

    rate: float | None = None
    patience: float = 60.0
    by_checksums: bool = False


@dataclass(frozen=True)
class Difference:
    """A key with different tuples on the server and in the tables; None if the key has no tuple."""

    key: bytes
    server: bytes | None
    tables: bytes | None

    def __str__(self) -> str:
        return (
            f"key {value_text(self.key)}: server {value_text(self.server)}, tables {value_text(self.tables)}"
        )


@dataclass(frozen=True)
class SpaceProof:
    """The result of comparing one space of one replicaset.

    Parameters
    ----------
    table, replicaset, peer : str
        The space's table, the replicaset's uuid, and the server.
    epoch : int
        The newest epoch when the comparison began.
    rows : int
        Number of tuples that were read from the server.
    looked_again : int
        Number of keys that differed at the first comparison, and were compared again.
    differences : tuple of Difference
        The keys that differ.
    moving : int
        Number of keys without a result, since they changed during each comparison.
    error : str or None
        Why the space was compared only in part or not at all; None if it was compared.
    skipped : str or None
        What cannot be compared in the space, and why; the proof holds nevertheless. None if all was compared.
    seconds : float
        Duration of the comparison.

    """

    table: str
    replicaset: str
    peer: str
    epoch: int
    rows: int = 0
    looked_again: int = 0
    differences: tuple[Difference, ...] = ()
    moving: int = 0
    error: str | None = None
    seconds: float = 0.0
    skipped: str | None = None

    @property
    def holds(self) -> bool:
        """Whether no key differs and no error occurred."""
        return not self.differences and self.error is None

    def __str__(self) -> str:
        text = f"{self.table} of replicaset {self.replicaset}, asked {self.peer}: "
        if self.differences:
            text += f"{len(self.differences)} of {self.rows} keys differ"
        elif self.error is None:
            text += f"{self.rows} tuples {'were read, no key differs' if self.moving else 'are equal'}"
        if self.error is not None:
            text += f"{', and then ' if self.differences else ''}not compared: {self.error}"
        if self.skipped is not None:
            text += f"; skipped: {self.skipped}"
        if self.moving:
            text += f"; {self.moving} keys changed during each comparison and have no result"
        return "\n  ".join([text, *map(str, self.differences[:EXAMPLES])])

    def row(self) -> dict[str, Any]:
        """Return the result as a row of `_validations`."""
        return {
            "table": self.table,
            "expectation": f"each key is as the servers of replicaset {self.replicaset} have it",
            "holds": self.holds,
            "rows": self.rows,
            "unexpected": len(self.differences),
            "examples": json.dumps([str(difference) for difference in self.differences[:EXAMPLES]])
            if self.differences
            else None,
            "error": self.error,
            "source": None,
        }


def value_text(data: bytes | None) -> str:
    """Return a key or tuple as text (bytes that are not MessagePack in hex); "none" for None."""
    return "none" if data is None else tuple_text(data)


class ReadRateLimit:
    """Rate limit of the tuples that are read from a server: sleeps after each page if reading is too fast."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next_read_at = time.monotonic()

    async def wait(self, rows: int) -> None:
        """Sleep after `rows` tuples were read, as long as the next read would exceed the rate."""
        if self._rate is not None:
            now = time.monotonic()
            self._next_read_at = max(self._next_read_at, now - 1.0) + rows / self._rate
            await asyncio.sleep(max(0.0, self._next_read_at - now))


class _ComparedPage(NamedTuple):
    """Of a compared page: number of tuples and bytes, last canonical key (None if empty), and the keys that differ."""

    rows: int
    size: int
    last: bytes | None
    differing: Sequence[bytes] = ()


class SpaceComparison:
    """Compares one space with a server.

    Parameters
    ----------
    compared : ComparedSpace
    connection : Connection
        Connection to the server.
    tables : callable
        Returns the tables at the newest epoch.
    limits : ProofLimits
    rate_limit : ReadRateLimit
        Shared by all spaces of a server.
    with_checksums : bool
        Whether the server computes page checksums.

    """

    def __init__(
        self,
        compared: ComparedSpace,
        connection: Connection,
        tables: Callable[[], EpochTables],
        limits: ProofLimits,
        rate_limit: ReadRateLimit,
        *,
        with_checksums: bool,
    ) -> None:
        self._compared, self._connection, self._tables = compared, connection, tables
        self._limits, self._rate_limit, self._with_checksums = limits, rate_limit, with_checksums
        self._pages = SpacePages(connection, compared.space.id)
        self._keys: SpaceKeys = space_keys(compared.space)
        self._rows = 0

    async def compare(self) -> SpaceProof:
        """Compare the space and return the result; errors are part of it, except a ConnectionLostError."""
        started, space = time.monotonic(), self._compared
        tables = self._tables()
        result = SpaceProof(space.table, space.replicaset_uuid, space.peer, tables.epoch)
        try:
            batches = tables.versions_of_replicaset(space.replicaset_id, space.table)
            versions = sorted_versions(batches, self._keys)
            if space.is_ordered:
                suspects = await self._compare_pages(versions)
            elif (whole := await self._read_if_one_page()) is not None:
                suspects = versions.differing(0, len(versions), server_page(whole, self._keys))
            else:
                suspects = await self._compare_known_keys(versions)
                result = replace(result, skipped=WITHOUT_ORDER)
            result = replace(result, looked_again=len(suspects))
            for begin in range(0, len(suspects), KEYS_AT_ONCE):
                differences, moving = await self._compare_again(suspects[begin : begin + KEYS_AT_ONCE])
                result = replace(
                    result,
                    differences=(*result.differences, *differences),
                    moving=result.moving + moving,
                )
                if len(result.differences) >= MAX_DIFFERENCES:
                    break
        except ConnectionLostError:
            raise
        except AggregatorError as error:
            result = replace(result, error=str(error))
        return replace(result, rows=self._rows, seconds=time.monotonic() - started)

    async def _compare_pages(self, versions: SortedVersions) -> list[bytes]:
        """Compare all pages of the space once, and return the canonical keys that differ."""
        suspects: dict[bytes, None] = {}
        after, limit = None, FIRST_PAGE_ROWS
        while True:
            page = await self._compare_page(versions, after, limit)
            suspects.update(dict.fromkeys(page.differing))
            self._rows += page.rows
            await self._rate_limit.wait(page.rows)
            if page.rows < limit or page.last is None:
                return list(suspects)
            after, limit = page.last, next_page_limit(page.rows, page.size)

    async def _read_if_one_page(self) -> list[bytes] | None:
        """Return all tuples of the space if they fit one page, which needs no order; else None."""
        limit, wider = 0, FIRST_PAGE_ROWS
        while wider > limit:
            limit = wider
            tuples = await self._pages.read_page(None, limit)
            await self._rate_limit.wait(len(tuples))
            if len(tuples) < limit:
                self._rows = len(tuples)
                return tuples
            wider = next_page_limit(len(tuples), sum(map(len, tuples)))
        return None

    async def _compare_known_keys(self, versions: SortedVersions) -> list[bytes]:
        """Compare each key of the tables with the server once, and return the keys that differ."""
        suspects: list[bytes] = []
        for begin in range(0, len(versions), KEYS_AT_ONCE):
            end = min(begin + KEYS_AT_ONCE, len(versions))
            answers = await self._pages.tuples_by_key(versions.keys[begin:end].to_pylist())
            tuples = [one for one in answers if one is not None]
            suspects += versions.differing(begin, end, server_page(tuples, self._keys))
            self._rows += len(tuples)
            await self._rate_limit.wait(end - begin)
        return suspects

    async def _compare_page(self, versions: SortedVersions, after: bytes | None, limit: int) -> _ComparedPage:
        """Compare the page of at most `limit` tuples after a key."""
        if self._with_checksums:
            sums = await self._pages.read_checksum(after, limit)
            last = None if sums.last_tuple is None else self._key_of(sums.last_tuple)
            begin, end = self._index_range(versions, after, last if sums.row_count == limit else None)
            if versions.is_equal(begin, end, sums.row_count, sums.checksum):
                return _ComparedPage(sums.row_count, sums.size_bytes, last)
        tuples = await self._pages.read_page(after, limit)
        page = server_page(tuples, self._keys)
        last = page.keys[-1].as_py() if tuples else None
        begin, end = self._index_range(versions, after, last if len(tuples) == limit else None)
        differing = versions.differing(begin, end, page)
        return _ComparedPage(len(tuples), sum(map(len, tuples)), last, differing)

    def _index_range(
        self, versions: SortedVersions, after: bytes | None, last: bytes | None
    ) -> tuple[int, int]:
        """Return the indexes (begin, end) of the versions after the canonical key `after`, up to `last` inclusive."""
        begin = None if after is None else self._keys.sortable_key(after)
        return versions.range_of(begin, None if last is None else self._keys.sortable_key(last))

    def _key_of(self, tuple_: bytes) -> bytes:
        """Return the canonical key of one tuple."""
        key: bytes = self._keys.of_tuples(pa.array([tuple_], pa.binary()))[0].as_py()
        return key

    async def _compare_again(self, keys: Sequence[bytes]) -> tuple[list[Difference], int]:
        """Compare keys at most `MAX_COMPARISONS` times; return the differences, and how many keys have no result."""
        undecided, differences, previous = list(keys), list[Difference](), dict[bytes, Difference]()
        for attempt in range(MAX_COMPARISONS):
            if attempt:
                await asyncio.sleep(PAUSE_SECONDS)
            differing, changed = await self._compare_keys(undecided)
            confirmed = [one for key, one in differing.items() if previous.get(key) == one]
            differences += confirmed
            undecided = list((differing.keys() | changed) - {one.key for one in confirmed})
            if not undecided:
                break
            previous = differing
        return differences, len(undecided)

    async def _compare_keys(self, keys: Sequence[bytes]) -> tuple[dict[bytes, Difference], set[bytes]]:
        """Compare keys once.

        Return the differences by key, and the keys that differed while the log changed them, which prove nothing.
        """
        space = self._compared
        before = self._tables()
        await self._wait_for_server(before.vclocks.get(space.replicaset_uuid, {}))
        server_tuples = await self._pages.tuples_by_key(keys)
        await self._rate_limit.wait(len(keys))
        tables = await self._wait_for_tables((await self._connection.request_ballot()).vclock)
        table_tuples = tables.tuples_of_keys(space.replicaset_id, space.table, keys)
        differing = {
            key: Difference(key, on_server, in_tables)
            for key, on_server, in_tables in zip(keys, server_tuples, table_tuples, strict=True)
            if on_server != in_tables
        }
        logged = tables.changed_keys(space.replicaset_id, space.space.id, self._keys.plan, before.epoch)
        changed = set(differing) if logged is None else logged & differing.keys()
        return {key: one for key, one in differing.items() if key not in changed}, changed

    async def _wait_for_server(self, vclock: Mapping[int, int]) -> None:
        """Wait until the server has all rows of a vclock; the server may be a replica that lags behind."""
        deadline = time.monotonic() + self._limits.patience
        while not _covers((await self._connection.request_ballot()).vclock, vclock):
            _raise_after(deadline, "the server does not reach the vclock of the tables")
            await asyncio.sleep(POLL_SECONDS)

    async def _wait_for_tables(self, vclock: Mapping[int, int]) -> EpochTables:
        """Wait until the tables have all rows of a vclock, and return the tables."""
        deadline = time.monotonic() + self._limits.patience
        while not _covers((tables := self._tables()).vclocks.get(self._compared.replicaset_uuid, {}), vclock):
            _raise_after(deadline, "the tables do not reach the vclock of the server")
            await asyncio.sleep(POLL_SECONDS)
        return tables


def _covers(vclock: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """Return whether no component of `vclock` is lower than in `other`; component 0, of local rows, does not count."""
    return all(vclock.get(id_, 0) >= lsn for id_, lsn in other.items() if 0 < id_ < 32)


def _raise_after(deadline: float, message: str) -> None:
    """Raise WarehouseError if a time of the monotonic clock has passed."""
    if time.monotonic() > deadline:
        raise WarehouseError(message, advice="is `aggregator run` running, and does it keep up?")
