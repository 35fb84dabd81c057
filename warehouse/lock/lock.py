"""The warehouse's writer lock: one writer at a time has it, and others are refused.

On a local file system the lock is an `flock` on a file of the warehouse, so that it ends with its process, however
that ends. On an object store it is a lease (`warehouse.lock.lease`), which a thread renews. On other file systems there
is no lock, and writers are refused.
Not here: who may write (the RID decides that), and what a writer that has lost the lock may still do
(`warehouse.delta.fence`).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from schemas.errors import LockError
from warehouse.delta.location import WarehouseLocation
from warehouse.lock.lease import LOCKED_ADVICE, RENEW_SECONDS, Lease, holder_of
from warehouse.lock.lease_store import object_lease

if TYPE_CHECKING:
    from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)

LINUX_LOCK_LIST = Path("/proc/locks")
"""Linux' list of all file locks (proc(5))."""

LOCK_NAME = "_writer.lock"


def _owner(purpose: str) -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "purpose": purpose}


def local_folder(location: str) -> Path | None:
    """Return the folder of a local path or `file:` URI, None for other locations."""
    url = urlparse(location)
    return Path(url.path if url.scheme else location) if url.scheme in ("", "file") else None


class WriterLock:
    """The lock, as a context manager.

    Args:
        warehouse: What is to be written; a location is enough, and needs no Spark.
        purpose: Shown to a process that finds the lock taken.

    Raises:
        LockError: On entry, if another writer has it; from `check`, if it was lost.
        UnsupportedError: On entry, if the store has neither locks nor conditional writes.
    """

    def __init__(self, warehouse: Warehouse | WarehouseLocation, purpose: str) -> None:
        self._warehouse = warehouse
        self._owner = _owner(purpose)
        self._folder = local_folder(warehouse.root)
        self._handle: Any = None
        self._lease: Lease | None = None
        self._stop = threading.Event()

    def __enter__(self) -> WriterLock:
        self._stop = threading.Event()
        if self._folder is not None:
            self._lock_file(self._folder)
        else:
            self._take_lease()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._handle is not None:
            self._handle.close()
        if self._lease is not None:
            _release(self._lease)

    @property
    def is_held(self) -> bool:
        """Whether this process has the lock, as far as it knows without a request to the store."""
        return not self._stop.is_set() and (self._lease is None or self._lease.is_held)

    def check(self) -> None:
        """Do what is due before a commit: `check_held`. The lock of a primary may also renew the mark of its RID."""
        self.check_held()

    def check_held(self) -> None:
        """Raise LockError if this process does not have the lock any more."""
        if self._stop.is_set():
            raise LockError("the writer lock was released", advice="take it again")
        if self._lease is not None:
            self._lease.check()

    def _lock_file(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / LOCK_NAME).open("a+", encoding="utf-8")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            holder = holder_of(handle.read())
            handle.close()
            raise LockError(
                f"the warehouse is being written by {holder}", warehouse=str(folder), advice=LOCKED_ADVICE
            ) from None
        handle.truncate(0)
        handle.write(json.dumps(self._owner))
        handle.flush()
        self._handle = handle

    def _take_lease(self) -> None:
        root = self._warehouse.root
        self._lease = Lease(object_lease(root, LOCK_NAME), self._owner, root)
        try:
            self._lease.take()
        except BaseException:
            self._lease = None
            raise
        threading.Thread(
            target=_keep_renewing, args=(self._lease, self._stop), name="writer-lock", daemon=True
        ).start()


def holder_now(lock: Path) -> str | None:
    """Return the holder of an `flock`, according to `LINUX_LOCK_LIST`; None if it is free."""
    if not lock.is_file() or not LINUX_LOCK_LIST.is_file():
        return None
    inode = str(lock.stat().st_ino)
    for line in LINUX_LOCK_LIST.read_text().splitlines():
        words = line.split()
        if "FLOCK" in words and any(word.rpartition(":")[2] == inode and ":" in word for word in words[1:]):
            return holder_of(lock.read_text())
    return None


def refuse_if_locked(root: str) -> None:
    """Raise LockError if a process on this machine holds the lock of a local warehouse, without taking the lock.

    For a job that starts something slow before it takes the lock.
    """
    folder = local_folder(root)
    holder = None if folder is None else holder_now(folder / LOCK_NAME)
    if holder is not None:
        raise LockError(
            f"the warehouse is being written by {holder}", warehouse=str(folder), advice=LOCKED_ADVICE
        )


def _keep_renewing(lease: Lease, stop: threading.Event) -> None:
    while not stop.wait(RENEW_SECONDS):
        try:
            lease.renew()
        except OSError as error:
            log.warning("the writer lock was not renewed: %s", error)
        except LockError as error:
            if not stop.is_set():
                log.error("%s", error)
            return


def _release(lease: Lease) -> None:
    try:
        lease.release()
    except OSError as error:
        log.warning("the writer lock could not be released; it expires by itself: %s", error)
