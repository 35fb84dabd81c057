"""A lease: an object of the warehouse that names its one writer, for as long as the writer renews it.

Every change of the object is a compare-and-set: it is created only where there is none, and replaced only as it was
read (If-None-Match and If-Match of HTTP, RFC 9110, 13.1). So of two who want it one gets it. The holder counts its time
from before the request that renewed it, by a clock that also counts while the machine sleeps. A process that takes it
over compares two times of the store, never its own clock.

A lease keeps writers apart that run. It cannot stop one that sleeps between its last look and a commit: the fence does
(`warehouse.fence`). Not here: the requests to a store (`warehouse.lease_store`), the thread that renews
(`warehouse.lock`).
"""

from __future__ import annotations

import json
import threading
import time
import uuid as uuids
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.errors import LockError

LEASE_SECONDS = 60.0
"""A lease that was not renewed for so long is free."""

HELD_SECONDS = 45.0
"""So long after the beginning of a renewal its holder continues without asking; then it renews before it commits."""

RENEW_SECONDS = 10.0

ADVICE = "stop the other writer, or wait for it to end; nothing was written"

_ATTEMPTS = 3


@dataclass(frozen=True)
class StoredLease:
    """A lease as the store has it.

    Parameters
    ----------
    text : str
    tag : object
        The store's name for this very content: what a replacement is conditional on.
    modified : float
        When it was written, in seconds by the store's clock.

    """

    text: str
    tag: object
    modified: float


class LeaseStore(Protocol):
    """What a lease needs of a store.

    Each method raises OSError where the request failed, whether or not the store has done what was asked.
    """

    def now(self) -> float:
        """Return the time by the clock that stamps `Stored.modified`.

        Raises
        ------
        UnsupportedError
            The store does not honour conditions.

        """

    def read(self) -> StoredLease | None:
        """Return the lease, None where there is none."""

    def create(self, text: str) -> object | None:
        """Write the lease where there is none, and return its tag; None where there is one."""

    def replace(self, text: str, tag: object) -> object | None:
        """Replace the lease that has this tag, and return the new tag; None where the tag is another one now."""


def awake_and_asleep() -> float:
    """Return seconds of a clock that never goes back, and on Linux counts while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def holder_of(text: str) -> str:
    """Return who wrote a lease or a lock, for a message."""
    try:
        owner = json.loads(text)
        return f"{owner['purpose']} (pid {owner['pid']} on {owner['host']})"
    except (ValueError, KeyError, TypeError):
        return "an unknown writer"


def _field(text: str, name: str) -> object:
    try:
        return json.loads(text).get(name)
    except (ValueError, AttributeError):
        return None


class Lease:
    """One writer's hold of a warehouse. Safe to use from several threads.

    Parameters
    ----------
    store : LeaseStore
    owner : mapping
        Who wants it: `purpose`, `pid` and `host` are shown to others.
    warehouse : str
        For messages.
    clock : callable
        Seconds that never go back.

    """

    def __init__(
        self,
        store: LeaseStore,
        owner: Mapping[str, Any],
        warehouse: str,
        clock: Callable[[], float] = awake_and_asleep,
    ) -> None:
        self._store, self._owner, self._clock = store, owner, clock
        self._warehouse = warehouse
        self._id = str(uuids.uuid4())
        self._writes = 0
        self._tag: object = None
        self._until = -1.0
        self._is_over = False
        self._turn = threading.Lock()

    @property
    def is_held(self) -> bool:
        """Whether the lease is ours by this machine's clock; asks no store."""
        return not self._is_over and self._clock() < self._until

    def take(self) -> None:
        """Take the lease.

        Raises
        ------
        LockError
            Another holds it, or the store does not answer.
        UnsupportedError
            The store cannot hold a lease.

        """
        try:
            now, found = self._store.now(), self._store.read()
            if found is not None and not _is_free(found, now):
                raise LockError(
                    f"the warehouse is being written by {holder_of(found.text)}",
                    warehouse=self._warehouse,
                    advice=f"{ADVICE}; the lock of a killed writer is free after {LEASE_SECONDS:.0f} s",
                )
            began = self._clock()
            if not self._put(found):
                raise LockError(
                    "the writer lock was taken first by another", warehouse=self._warehouse, advice=ADVICE
                )
        except OSError as error:
            raise LockError(
                f"the writer lock cannot be taken: {error}", warehouse=self._warehouse, advice="try again"
            ) from error
        self._until = began + HELD_SECONDS

    def renew(self) -> None:
        """Write the lease again.

        Raises
        ------
        LockError
            Another has taken it.
        OSError
            It is unknown whether the lease is renewed.

        """
        with self._turn:
            began = self._clock()
            if self._is_over or not self._put(StoredLease("", self._tag, 0.0)):
                self._is_over, self._until = True, -1.0
                raise LockError("the writer lock was lost: another writer took it over", advice="start again")
            self._until = began + HELD_SECONDS

    def check(self) -> None:
        """Return where the lease is ours; where that is too long ago to know, renew it first.

        Raises
        ------
        LockError
            It is not ours any more, or the store does not answer.

        """
        if self._clock() < self._until:
            return
        try:
            self.renew()
        except OSError as error:
            reason = f"the writer lock was lost: it cannot be renewed: {error}"
            raise LockError(reason, advice="start again") from error

    def release(self) -> None:
        """Let others take the lease at once; without an answer of the store they wait until it ends by itself."""
        with self._turn:
            if self._is_over:
                return
            self._is_over, self._until = True, -1.0
            self._store.replace(self._text(is_free=True), self._tag)

    def _put(self, found: StoredLease | None) -> bool:
        """Replace the lease that was found, and return whether it is ours now."""
        for _ in range(_ATTEMPTS):
            text = self._text(is_free=False)
            tag = self._store.create(text) if found is None else self._store.replace(text, found.tag)
            if tag is not None:
                self._tag = tag
                return True
            # It may be our own: written by a request whose answer was lost.
            found = self._store.read()
            if found is None or _field(found.text, "id") != self._id:
                return False
        return False

    def _text(self, *, is_free: bool) -> str:
        # A store may give equal contents equal tags: no two texts are equal.
        self._writes += 1
        return json.dumps({**self._owner, "id": self._id, "write": self._writes, "free": is_free})


def _is_free(found: StoredLease, now: float) -> bool:
    # A stamp far ahead of the store's own time says that its clock was set back.
    return _field(found.text, "free") is True or abs(now - found.modified) >= LEASE_SECONDS
