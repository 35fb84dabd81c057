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

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from observe.log_rows.row_format import tuple_text
from observe.proof.epoch_tables import EpochTables
from observe.proof.sorted_versions import (
    ServerPage,
    SortedVersions,
    SpaceKeyFunctions,
    range_of_versions,
    server_page,
    sorted_versions,
    space_key_functions,
)
from schemas.errors import AggregatorError, ConnectionLostError, WarehouseError
from schemas.names import server_expectation
from schemas.space import Space
from sources.iproto.client import Connection
from sources.iproto.space_pages import FIRST_PAGE_ROWS, SpacePages, next_page_limit

MAX_KEY_COMPARISONS = 6
"""Maximum number of repeated comparisons of a key; after that the key has no result."""

KEYS_PER_REQUEST = 5000
"""Number of keys whose tuples are read from the server by one call."""

MAX_DIFFERENCES = 1000
"""Number of differing keys after which the comparison of a space ends."""

MAX_SHOWN_DIFFERENCES = 5
"""Maximum number of differing keys that a result shows; it counts all of them."""

VCLOCK_POLL_SECONDS = 0.3
"""Seconds between two requests for a vclock that is waited for."""

SKIPPED_WITHOUT_ORDER = (
    "keys that only the server has: its primary index is a hash, without an order in which to read pages"
)
"""What is skipped in a large space whose primary index is a hash."""

COMPARISON_PAUSE_SECONDS = 1.0
"""Seconds between two comparisons of a key, enough for the server to write to its log a change that it shows."""


@dataclass(frozen=True)
class ComparedSpace:
    """A space with its table, its replicaset and the server to compare with."""

    space: Space
    table: str
    replicaset_id: int
    replicaset_uuid: str
    peer: str
    is_ordered: bool = True
    """Whether the primary index has an order, by which the server can be read page by page."""


@dataclass(frozen=True)
class ProofLimits:
    """Limits of a comparison's load and duration."""

    tuples_per_second: float | None = None
    """Tuples per second to read from a server; None: no limit."""
    timeout_seconds: float = 60.0
    """Seconds to wait until the tables have all rows that the server has, and the server all rows of the tables."""
    uses_checksums: bool = False
    """Whether the server computes checksums of pages, if the user may run Lua. They need less network traffic than
    SELECTs, but several times the processor time on the server (docs/benchmarks.md)."""
    share_of_time: float | None = None
    """Largest share of time in which requests of the proof wait for answers of one server; None: no limit."""


@dataclass(frozen=True)
class Difference:
    """A key that has different tuples on the server and in the tables; a tuple is None if the key has none there."""

    key: bytes
    server_tuple: bytes | None
    table_tuple: bytes | None

    def __str__(self) -> str:
        return (
            f"key {key_or_tuple_text(self.key)}: server {key_or_tuple_text(self.server_tuple)}, "
            f"tables {key_or_tuple_text(self.table_tuple)}"
        )


@dataclass(frozen=True)
class SpaceProof:
    """The result of comparing one space of one replicaset."""

    table: str
    replicaset: str
    peer: str
    """The space's table, the replicaset's uuid, and the server."""
    epoch: int
    """The newest epoch when the comparison began."""
    rows: int = 0
    """Number of tuples that were read from the server."""
    looked_again: int = 0
    """Number of keys that differed at the first comparison, and were compared again."""
    differences: tuple[Difference, ...] = ()
    moving: int = 0
    """Number of keys that have no result, since they changed during each comparison."""
    error: str | None = None
    """Why the space was not compared, or only in part; None if it was compared."""
    seconds: float = 0.0
    skipped: str | None = None
    """What cannot be compared in the space, and why, although the proof may hold; None if all was compared."""

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
        return "\n  ".join([text, *map(str, self.differences[:MAX_SHOWN_DIFFERENCES])])

    def validation_row(self) -> dict[str, Any]:
        """Return the result as a row of `_validations`."""
        return {
            "table": self.table,
            "expectation": server_expectation(self.replicaset),
            "holds": self.holds,
            "rows": self.rows,
            "unexpected": len(self.differences),
            "examples": json.dumps(
                [str(difference) for difference in self.differences[:MAX_SHOWN_DIFFERENCES]]
            )
            if self.differences
            else None,
            "error": self.error,
            "source": None,
        }

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object; its names are those of `aggregator prove --json`."""
        differences = [
            {
                "key": key_or_tuple_text(one.key),
                "server": key_or_tuple_text(one.server_tuple),
                "tables": key_or_tuple_text(one.table_tuple),
            }
            for one in self.differences
        ]
        return {**asdict(self), "differences": differences, "holds": self.holds}


def key_or_tuple_text(data: bytes | None) -> str:
    """Return a key or tuple as text (bytes that are not MessagePack in hex); "none" for None."""
    return "none" if data is None else tuple_text(data)


class ReadRateLimit:
    """Limits the load on a server: sleeps after a page if reading is too fast, or takes too much of the server's time.

    The server's time is at most the time in which requests of the connection wait for answers.
    """

    def __init__(self, limits: ProofLimits, connection: Connection) -> None:
        self._tuples_per_second, self._share_of_time = limits.tuples_per_second, limits.share_of_time
        self._connection = connection
        self._began_at = self._next_read_at = time.monotonic()

    async def wait(self, rows: int) -> None:
        """Sleep until more tuples may be read, after a page with `rows` tuples was read."""
        now, pause = time.monotonic(), 0.0
        if self._tuples_per_second is not None:
            self._next_read_at = max(self._next_read_at, now - 1.0) + rows / self._tuples_per_second
            pause = self._next_read_at - now
        if self._share_of_time is not None:
            needed = self._connection.answer_seconds / self._share_of_time
            pause = max(pause, self._began_at + needed - now)
        if pause > 0.0:
            await asyncio.sleep(pause)


class _ComparedPage(NamedTuple):
    """The result of comparing a page: its size, its last canonical key (None if it is empty), the keys that differ."""

    tuple_count: int
    byte_count: int
    last_key: bytes | None
    differing_keys: Sequence[bytes] = ()


class SpaceComparison:
    """Compares one space with a server.

    Args:
        rate_limit: One object for all spaces of a server.
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
        self._keys: SpaceKeyFunctions = space_key_functions(compared.space)
        self._read_tuples = 0

    async def compare(self) -> SpaceProof:
        """Compare the space and return the result; errors are part of it, except a ConnectionLostError."""
        return (await self.compare_slice(None, None))[0]

    async def compare_slice(
        self, after: bytes | None, tuple_count: int | None
    ) -> tuple[SpaceProof, bytes | None]:
        """Compare the tuples after a canonical key, about as many as `tuple_count`; None: all of them.

        Return the result, and the slice's last canonical key; None if the slice is the space's last one. A space
        without an order is one slice.
        """
        started, space = time.monotonic(), self._compared
        last: bytes | None = None
        tables = self._tables()
        result = SpaceProof(space.table, space.replicaset_uuid, space.peer, tables.epoch)
        try:
            if space.is_ordered and tuple_count is not None:
                suspects, last = await self._compare_range(after, tuple_count)
            else:
                batches = tables.versions_of_replicaset(space.replicaset_id, space.table)
                versions = sorted_versions(batches, self._keys)
                if space.is_ordered:
                    suspects = await self._compare_pages(versions)
                elif (whole := await self._read_single_page()) is not None:
                    suspects = versions.differing_keys(0, len(versions), server_page(whole, self._keys))
                else:
                    suspects = await self._compare_keys_of_tables(versions)
                    result = replace(result, skipped=SKIPPED_WITHOUT_ORDER)
            result = replace(result, looked_again=len(suspects))
            for begin in range(0, len(suspects), KEYS_PER_REQUEST):
                differences, undecided = await self._compare_again(suspects[begin : begin + KEYS_PER_REQUEST])
                result = replace(
                    result,
                    differences=(*result.differences, *differences),
                    moving=result.moving + undecided,
                )
                if len(result.differences) >= MAX_DIFFERENCES:
                    break
        except ConnectionLostError:
            raise
        except AggregatorError as error:
            result = replace(result, error=str(error))
        return replace(result, rows=self._read_tuples, seconds=time.monotonic() - started), last

    async def _compare_range(self, after: bytes | None, tuple_count: int) -> tuple[list[bytes], bytes | None]:
        """Compare the pages after a key, then the range of the tables that they cover.

        Return the keys that differ, and the last key; None if no more tuples follow it. Only the range is in memory.
        """
        pages: list[ServerPage] = []
        last, limit, rest = after, FIRST_PAGE_ROWS, tuple_count
        while rest > 0:
            tuples = await self._pages.read_page(last, limit)
            self._read_tuples += len(tuples)
            await self._rate_limit.wait(len(tuples))
            pages.append(server_page(tuples, self._keys))
            is_last = len(tuples) < limit
            last = None if is_last else pages[-1].keys[-1].as_py()
            if is_last:
                break
            rest -= len(tuples)
            limit = next_page_limit(len(tuples), sum(map(len, tuples)))
        begin, end = (None if key is None else self._keys.sortable_key(key) for key in (after, last))
        space = self._compared
        batches = self._tables().versions_of_replicaset(space.replicaset_id, space.table)
        versions = sorted_versions(range_of_versions(batches, self._keys, begin, end), self._keys)
        suspects: list[bytes] = []
        first = 0
        for page in pages:
            is_open = page is pages[-1]
            until = None if is_open else self._keys.sortable_key(page.keys[-1].as_py())
            _, next_first = versions.index_range(None, until)
            total = int(page.hashes.sum(dtype=np.uint64))
            if not versions.range_has_checksum(first, next_first, len(page.hashes), total):
                suspects += versions.differing_keys(first, next_first, page)
            first = next_first
        return suspects, last

    async def _compare_pages(self, versions: SortedVersions) -> list[bytes]:
        suspects: dict[bytes, None] = {}
        after, limit = None, FIRST_PAGE_ROWS
        while True:
            page = await self._compare_page(versions, after, limit)
            suspects.update(dict.fromkeys(page.differing_keys))
            self._read_tuples += page.tuple_count
            await self._rate_limit.wait(page.tuple_count)
            if page.tuple_count < limit or page.last_key is None:
                return list(suspects)
            after, limit = page.last_key, next_page_limit(page.tuple_count, page.byte_count)

    async def _read_single_page(self) -> list[bytes] | None:
        """Return all tuples of the space if they fit into one page, which is read without an order; else None."""
        limit, wider = 0, FIRST_PAGE_ROWS
        while wider > limit:
            limit = wider
            tuples = await self._pages.read_page(None, limit)
            await self._rate_limit.wait(len(tuples))
            if len(tuples) < limit:
                self._read_tuples = len(tuples)
                return tuples
            wider = next_page_limit(len(tuples), sum(map(len, tuples)))
        return None

    async def _compare_keys_of_tables(self, versions: SortedVersions) -> list[bytes]:
        suspects: list[bytes] = []
        for begin in range(0, len(versions), KEYS_PER_REQUEST):
            end = min(begin + KEYS_PER_REQUEST, len(versions))
            answers = await self._pages.tuples_by_key(versions.keys[begin:end].to_pylist())
            tuples = [one for one in answers if one is not None]
            suspects += versions.differing_keys(begin, end, server_page(tuples, self._keys))
            self._read_tuples += len(tuples)
            await self._rate_limit.wait(end - begin)
        return suspects

    async def _compare_page(self, versions: SortedVersions, after: bytes | None, limit: int) -> _ComparedPage:
        """Compare a page: at most `limit` tuples after the canonical key `after`, or the first ones if it is None."""
        if self._with_checksums:
            sums = await self._pages.read_checksum(after, limit)
            last = None if sums.last_tuple is None else self._canonical_key_of(sums.last_tuple)
            begin, end = self._index_range(versions, after, last if sums.row_count == limit else None)
            if versions.range_has_checksum(begin, end, sums.row_count, sums.checksum):
                return _ComparedPage(sums.row_count, sums.size_bytes, last)
        tuples = await self._pages.read_page(after, limit)
        page = server_page(tuples, self._keys)
        last = page.keys[-1].as_py() if tuples else None
        begin, end = self._index_range(versions, after, last if len(tuples) == limit else None)
        differing_keys = versions.differing_keys(begin, end, page)
        return _ComparedPage(len(tuples), sum(map(len, tuples)), last, differing_keys)

    def _index_range(
        self, versions: SortedVersions, after: bytes | None, last: bytes | None
    ) -> tuple[int, int]:
        """Return the indexes (begin, end) of the versions after the canonical key `after`, up to `last` inclusive."""
        begin = None if after is None else self._keys.sortable_key(after)
        return versions.index_range(begin, None if last is None else self._keys.sortable_key(last))

    def _canonical_key_of(self, tuple_: bytes) -> bytes:
        key: bytes = self._keys.canonical_keys(pa.array([tuple_], pa.binary()))[0].as_py()
        return key

    async def _compare_again(self, keys: Sequence[bytes]) -> tuple[list[Difference], int]:
        """Compare keys at most `MAX_KEY_COMPARISONS` times; return the differences and the number of undecided keys."""
        undecided, differences, previous = list(keys), list[Difference](), dict[bytes, Difference]()
        for attempt in range(MAX_KEY_COMPARISONS):
            if attempt:
                await asyncio.sleep(COMPARISON_PAUSE_SECONDS)
            differences_by_key, changed = await self._compare_keys(undecided)
            confirmed = [one for key, one in differences_by_key.items() if previous.get(key) == one]
            differences += confirmed
            undecided = list((differences_by_key.keys() | changed) - {one.key for one in confirmed})
            if not undecided:
                break
            previous = differences_by_key
        return differences, len(undecided)

    async def _compare_keys(self, keys: Sequence[bytes]) -> tuple[dict[bytes, Difference], set[bytes]]:
        """Compare keys once; return the differences, and the keys that the log changed meanwhile."""
        space = self._compared
        before = self._tables()
        await self._wait_for_server(before.vclock_by_replicaset.get(space.replicaset_uuid, {}))
        server_tuples = await self._pages.tuples_by_key(keys)
        await self._rate_limit.wait(len(keys))
        tables = await self._wait_for_tables((await self._connection.request_ballot()).vclock)
        table_tuples = tables.tuples_of_keys(space.replicaset_id, space.table, keys)
        differences_by_key = {
            key: Difference(key, on_server, in_tables)
            for key, on_server, in_tables in zip(keys, server_tuples, table_tuples, strict=True)
            if on_server != in_tables
        }
        logged = tables.changed_keys(space.replicaset_id, space.space.id, self._keys.plan, before.epoch)
        changed = set(differences_by_key) if logged is None else logged & differences_by_key.keys()
        return {key: one for key, one in differences_by_key.items() if key not in changed}, changed

    async def _wait_for_server(self, vclock: Mapping[int, int]) -> None:
        """Wait until the server has all rows of a vclock; the server may be a replica that lags behind."""
        deadline = time.monotonic() + self._limits.timeout_seconds
        while not _covers((await self._connection.request_ballot()).vclock, vclock):
            _raise_after(deadline, "the server does not reach the vclock of the tables")
            await asyncio.sleep(VCLOCK_POLL_SECONDS)

    async def _wait_for_tables(self, vclock: Mapping[int, int]) -> EpochTables:
        deadline = time.monotonic() + self._limits.timeout_seconds
        uuid = self._compared.replicaset_uuid
        while not _covers((tables := self._tables()).vclock_by_replicaset.get(uuid, {}), vclock):
            _raise_after(deadline, "the tables do not reach the vclock of the server")
            await asyncio.sleep(VCLOCK_POLL_SECONDS)
        return tables


def _covers(vclock: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """Return whether `vclock` has all rows of `other`, without component 0: local rows are not compared."""
    return all(vclock.get(id_, 0) >= lsn for id_, lsn in other.items() if 0 < id_ < 32)


def _raise_after(deadline: float, message: str) -> None:
    if time.monotonic() > deadline:
        raise WarehouseError(message, advice="is `aggregator run` running, and does it keep up?")
