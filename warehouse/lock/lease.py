"""A lease: an object in the warehouse's folder that names its one writer, as long as the writer renews it.

Every change of the object is a compare-and-set: it is created only if there is none, and replaced only if it has not
changed since it was read (If-None-Match and If-Match of HTTP, RFC 9110, 13.1). So only one of two processes gets it.
The holder counts the lease's time from before the request that renewed the lease, by a clock that also counts while
the machine sleeps. A process that takes over an expired lease compares two times of the store, never its own clock.

A lease keeps running writers apart. It cannot stop a writer that sleeps between its last check and a commit: the fence
does (`warehouse.delta.fence`). Not here: the requests to a store (`warehouse.lock.lease_store`), the thread that renews
the lease (`warehouse.lock.lock`).
"""

import json
import threading
import time
import uuid as uuids
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.errors import LockError

LEASE_SECONDS = 60.0
"""A lease that was not renewed for this long is free."""

TRUSTED_SECONDS = 45.0
"""How long after the start of a renewal the holder commits without a request; later, it renews the lease first."""

RENEW_SECONDS = 10.0
"""The time between two renewals by the holder's thread."""

LOCKED_ADVICE = "stop the other writer, or wait for it to end; nothing was written"

_ATTEMPTS = 3


@dataclass(frozen=True)
class StoredLease:
    """The stored object of a lease."""

    text: str
    tag: object
    """The store's tag of this content (ETag): the object is replaced only if it still has this tag."""
    modified: float
    """When it was written, in seconds by the store's clock."""


class LeaseStore(Protocol):
    """The requests to a store that a lease needs.

    Each method raises OSError if the request failed, whether or not the store has carried it out.
    """

    def now(self) -> float:
        """Return the store's time, by the clock of `StoredLease.modified`.

        Raises:
            UnsupportedError: The store does not support conditional writes.
        """

    def read(self) -> StoredLease | None:
        """Return the stored lease, None if there is none."""

    def create(self, text: str) -> object | None:
        """Write the lease if there is none, and return its tag; return None if there is one."""

    def replace(self, text: str, tag: object) -> object | None:
        """Replace the lease if it has this tag, and return the new tag; return None if it has another tag."""


def seconds_since_boot() -> float:
    """Return seconds of a clock that never goes back, and on Linux counts while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def holder_of(text: str) -> str:
    """Return the writer that the text of a lease or of a lock file names, for a message."""
    try:
        owner = json.loads(text)
        return f"{owner['purpose']} (pid {owner['pid']} on {owner['host']})"
    except (ValueError, KeyError, TypeError):
        return "an unknown writer"


def _json_field(text: str, name: str) -> object:
    try:
        return json.loads(text).get(name)
    except (ValueError, AttributeError):
        return None


class Lease:
    """One writer's lease of a warehouse. Safe to use from several threads."""

    def __init__(
        self,
        store: LeaseStore,
        owner: Mapping[str, Any],
        warehouse: str,
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self._store, self._owner, self._clock = store, owner, clock
        self._warehouse = warehouse
        self._id = str(uuids.uuid4())
        self._writes = 0
        self._tag: object = None
        self._held_until = -1.0
        self._has_ended = False
        self._renewal_lock = threading.Lock()

    @property
    def is_held(self) -> bool:
        """Whether this writer has the lease, by this machine's clock and without a request."""
        return not self._has_ended and self._clock() < self._held_until

    def take(self) -> None:
        """Take the lease.

        Raises:
            LockError: Another process has it, or the store does not answer.
            UnsupportedError: The store does not support conditional writes.
        """
        try:
            now, found = self._store.now(), self._store.read()
            if found is not None and not _is_free(found, now):
                raise LockError(
                    f"the warehouse is being written by {holder_of(found.text)}",
                    warehouse=self._warehouse,
                    advice=f"{LOCKED_ADVICE}; the lock of a killed writer is free after {LEASE_SECONDS:.0f} s",
                )
            began = self._clock()
            if not self._put(found):
                raise LockError(
                    "another process took the writer lock first",
                    warehouse=self._warehouse,
                    advice=LOCKED_ADVICE,
                )
        except OSError as error:
            raise LockError(
                f"the writer lock cannot be taken: {error}", warehouse=self._warehouse, advice="try again"
            ) from error
        self._held_until = began + TRUSTED_SECONDS

    def renew(self) -> None:
        """Write the lease again.

        Raises:
            LockError: Another process has taken it.
            OSError: The request failed: it is not known whether the lease is renewed.
        """
        with self._renewal_lock:
            began = self._clock()
            if self._has_ended or not self._put(StoredLease("", self._tag, 0.0)):
                self._has_ended, self._held_until = True, -1.0
                raise LockError("the writer lock was lost: another writer took it over", advice="start again")
            self._held_until = began + TRUSTED_SECONDS

    def check(self) -> None:
        """Raise unless this writer has the lease; renew it if the last renewal began more than `TRUSTED_SECONDS` ago.

        Raises:
            LockError: Another writer has taken the lease, or the store does not answer.
        """
        if self._clock() < self._held_until:
            return
        try:
            self.renew()
        except OSError as error:
            reason = f"the writer lock was lost: it cannot be renewed: {error}"
            raise LockError(reason, advice="start again") from error

    def release(self) -> None:
        """Let others take the lease at once. If the request fails (OSError), they wait until it expires."""
        with self._renewal_lock:
            if self._has_ended:
                return
            self._has_ended, self._held_until = True, -1.0
            self._store.replace(self._text(is_free=True), self._tag)

    def _put(self, found: StoredLease | None) -> bool:
        """Replace the lease that was found, or create it if none was; return whether this writer has it now."""
        for _ in range(_ATTEMPTS):
            text = self._text(is_free=False)
            tag = self._store.create(text) if found is None else self._store.replace(text, found.tag)
            if tag is not None:
                self._tag = tag
                return True
            # It may be our own: written by a request whose answer was lost.
            found = self._store.read()
            if found is None or _json_field(found.text, "id") != self._id:
                return False
        return False

    def _text(self, *, is_free: bool) -> str:
        # A store may give equal contents equal tags, so each text has another count.
        self._writes += 1
        return json.dumps({**self._owner, "id": self._id, "write": self._writes, "free": is_free})


def _is_free(found: StoredLease, now: float) -> bool:
    # A stamp far ahead of the store's time means that its clock was set back: such a lease is free, too.
    return _json_field(found.text, "free") is True or abs(now - found.modified) >= LEASE_SECONDS
