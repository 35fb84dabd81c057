"""The rolling proof: a thread of the running job compares all tables with live servers, slice by slice.

A slice is a range of keys of one space. Slices begin between batches and hold no lock, so no batch waits for them, and
an error is a line of the log. A round goes through all spaces of a replicaset; the next one begins after half of
`prove.every`, so that each tuple is compared once within `prove.every` if a round takes less than the other half. The
results of a round are rows of `_validations`, those of differences at once; `observe.problems` finds differences and
old proofs there. How far a round has come is in a file, so a restart continues it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import uuid as uuids
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from config.deployment import Proof
from config.subscribe import seconds
from observe.proof.epoch_tables import EpochTables, newest_tables
from observe.proof.replicaset_proof import comparable_spaces, connect_to_replicaset
from observe.proof.space_proof import (
    MAX_SHOWN_DIFFERENCES,
    ComparedSpace,
    ProofLimits,
    ReadRateLimit,
    SpaceComparison,
    SpaceProof,
)
from pipeline.state import State
from schemas.errors import AggregatorError, IprotoError
from sources.iproto.address import Peer
from sources.iproto.client import Connection
from warehouse.copies.rid import is_writable
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import NO_EPOCH
from warehouse.system_tables import validations

log = logging.getLogger(__name__)

SLICE_TUPLES, MAX_SLICE_TUPLES = 100_000, 2_000_000
"""Number of tuples of a space's first slice, and the most that a slice has: each slice doubles what was compared, since
each one reads the whole table on this side."""

MAX_TRIES = 3
"""How often a slice is tried that the tables or the server do not allow to compare; then its space is left out of the
round."""

RETRY_SECONDS = 60.0
"""Pause after an error of a server or of the tables."""

PATIENCE_SECONDS = 120.0
"""How long the tables may take to reach a server's vclock, where keys are compared again."""

MAX_WAIT_FOR_BATCH_SECONDS = 30.0
"""A slice waits this long for the end of the batch in progress. If the batch takes longer, both run side by side."""

STOP_SECONDS = 10.0
"""How long the end of the thread is awaited."""


@dataclass(frozen=True)
class Round:
    """How far a round through the spaces of one replicaset has come; times are seconds since 1970."""

    began: float
    done: tuple[str, ...] = ()
    """Tables that are compared, or left out."""
    is_complete: bool = False
    table: str | None = None
    """The table that is being compared; the fields below are about it."""
    table_began: float = 0.0
    after: str | None = None
    """The canonical key, in hex, up to which it is compared."""
    rows: int = 0
    unexpected: int = 0
    examples: tuple[str, ...] = ()
    tries: int = 0
    """How often its next slice has failed."""
    results: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """Rows for `_validations` that are not written yet, without their time; `began` has it."""

    def begun_with(self, table: str) -> Round:
        """Return the round at the beginning of a table."""
        return Round(self.began, self.done, table=table, table_began=time.time(), results=self.results)

    def after_slice(self, proof: SpaceProof, last: bytes | None) -> Round:
        """Return the round after a slice without an error; `last` is None after the table's last slice."""
        examples = (*self.examples, *map(str, proof.differences))[:MAX_SHOWN_DIFFERENCES]
        return replace(
            self,
            after=None if last is None else last.hex(),
            rows=self.rows + proof.rows,
            unexpected=self.unexpected + len(proof.differences),
            examples=examples,
            tries=0,
        )

    def after_table(self, row: dict[str, Any]) -> Round:
        """Return the round after its table, whose result is a row for `_validations`."""
        done = (*self.done, str(row["table"]))
        return Round(self.began, done, results=(*self.results, {**row, "began": self.table_began}))


class RollingProof:
    """The rolling proof of one deployment.

    Args:
        peers: The servers to read from: a list of members for each replicaset.
        state: Returns the state after the newest batch.
        file: Where the rounds' progress is stored.
        is_in_batch: Returns whether a batch is in progress.
    """

    def __init__(
        self,
        config: Proof,
        location: WarehouseLocation,
        peers: Sequence[Sequence[Peer]],
        state: Callable[[], State],
        file: str,
        is_in_batch: Callable[[], bool] = lambda: False,
    ) -> None:
        self._location, self.replicasets, self._state = location, peers, state
        self._file, self._is_in_batch = Path(file), is_in_batch
        self._round_seconds = seconds(config.every) / 2
        self._limits = ProofLimits(timeout_seconds=PATIENCE_SECONDS, share_of_time=config.share_of_time)
        self._rounds = _stored_rounds(self._file)
        self._retry_at: dict[str, float] = {}
        self._last_error: dict[str, str] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Compare in a thread while the block runs."""
        loop = asyncio.new_event_loop()
        task = loop.create_task(self._follow())

        def run() -> None:
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
            loop.close()

        thread = threading.Thread(target=run, name="proof", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(task.cancel)
            thread.join(STOP_SECONDS)

    async def _follow(self) -> None:
        while True:
            has_compared = False
            for members in self.replicasets:
                await self._wait_for_batch()
                has_compared |= await self.compare_next(members)
            await asyncio.sleep(1.0 if has_compared else min(10.0, self._round_seconds / 20))

    async def _wait_for_batch(self) -> None:
        deadline = time.monotonic() + MAX_WAIT_FOR_BATCH_SECONDS
        while self._is_in_batch() and time.monotonic() < deadline:
            await asyncio.sleep(0.1)

    async def compare_next(self, members: Sequence[Peer]) -> bool:
        """Compare the next slice of a replicaset; return False if none is due, or if it failed."""
        name = members[0].name
        current = self._rounds.get(name)
        is_idle = (
            current is not None and current.is_complete and time.time() < current.began + self._round_seconds
        )
        if is_idle or time.monotonic() < self._retry_at.get(name, 0.0) or self._state().epoch == NO_EPOCH:
            return False
        if current is None or current.is_complete:
            current = Round(time.time())
        try:
            self._rounds[name] = await self._compare_slice(members, current)
            if self._last_error.pop(name, None) is not None:
                log.warning("proof: %s can be compared again", name)
            _store_rounds(self._file, self._rounds)
        except Exception as error:  # the stream goes on
            self._retry_at[name] = time.monotonic() + RETRY_SECONDS
            if self._last_error.get(name) != str(error):
                is_expected = isinstance(error, AggregatorError)
                log.warning("proof: %s is not compared: %s", name, error, exc_info=not is_expected)
            self._last_error[name] = str(error)
            return False
        return True

    async def _compare_slice(self, members: Sequence[Peer], current: Round) -> Round:
        connection, replicaset = await connect_to_replicaset(members, self._state())
        try:
            limit = ReadRateLimit(self._limits, connection)
            spaces = comparable_spaces(replicaset, connection.peer.name)
            if current.table not in spaces:
                following = next((table for table in spaces if table not in current.done), None)
                if following is None:
                    self._write(current.results)
                    return Round(current.began, current.done, is_complete=True)
                current = current.begun_with(following)
            proof, last = await self._compare_range(spaces[str(current.table)], current, connection, limit)
            await limit.wait(0)
        finally:
            connection.close()
        return self._advanced(members[0].name, current, proof, last)

    async def _compare_range(
        self, space: ComparedSpace, current: Round, connection: Connection, limit: ReadRateLimit
    ) -> tuple[SpaceProof, bytes | None]:
        def tables() -> EpochTables:
            return newest_tables(self._location)

        try:
            comparison = SpaceComparison(space, connection, tables, self._limits, limit, with_checksums=False)
            after = None if current.after is None else bytes.fromhex(current.after)
            tuple_count = min(MAX_SLICE_TUPLES, max(SLICE_TUPLES, current.rows))
            return await comparison.compare_slice(after, tuple_count)
        except IprotoError:
            raise
        except AggregatorError as error:
            proof = SpaceProof(space.table, space.replicaset_uuid, space.peer, NO_EPOCH, error=str(error))
            return proof, None

    def _advanced(self, name: str, current: Round, proof: SpaceProof, last: bytes | None) -> Round:
        """Return the round after a slice; write differences at once."""
        if proof.differences:
            log.error("proof: %s", proof)
            self._write([{**proof.validation_row(), "began": time.time()}])
        if proof.error is not None:
            if current.tries + 1 < MAX_TRIES:
                log.warning("proof: %s is compared again in a minute: %s", proof.table, proof.error)
                self._retry_at[name] = time.monotonic() + RETRY_SECONDS
                return replace(current, tries=current.tries + 1)
            log.warning("proof: %s is left out of this round: %s", proof.table, proof.error)
            return current.after_table(proof.validation_row())
        current = current.after_slice(proof, last)
        if last is not None:
            return current
        row = {
            **proof.validation_row(),
            "holds": not current.unexpected,
            "rows": current.rows,
            "unexpected": current.unexpected,
            "examples": json.dumps(current.examples) if current.examples else None,
        }
        return current.after_table(row)

    def _write(self, results: Sequence[dict[str, Any]]) -> None:
        run, epoch = uuids.uuid4().hex, self._state().epoch
        rows = [{**row, "validated_at": datetime.fromtimestamp(row["began"], UTC)} for row in results]
        for row in rows:
            del row["began"]
        if rows and is_writable(self._location):
            validations.append(self._location, run, datetime.now(UTC), epoch, rows)


def _stored_rounds(file: Path) -> dict[str, Round]:
    """Return the stored rounds by the name of the replicaset's first peer; without a readable file there are none."""
    try:
        found = json.loads(file.read_text())
        tuples = ("done", "examples", "results")
        return {
            name: Round(**{**one, **{key: tuple(one[key]) for key in tuples}}) for name, one in found.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _store_rounds(file: Path, rounds: dict[str, Round]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps({name: asdict(one) for name, one in rounds.items()}))
        fresh.replace(file)
    except OSError as error:
        log.debug("the state of the rolling proof cannot be stored: %s", error)
