"""The warehouse's writer lock: at most one writer commits at a time.

On a local file system the lock is an `flock` on a file beside the tables, so that it ends with its process,
however that ends. Elsewhere it is a lease: a file that is created only where none is (atomic on HDFS and the
like), renewed while it is held, and taken over once it has not been renewed for `LEASE_SECONDS`.
Not here: who may write (the RID decides that).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from schemas.errors import LockError
from tables.lease import ArrowFile, HadoopFile, LeaseFile
from tables.place import Place

if TYPE_CHECKING:
    from tables.warehouse import Warehouse

LOCK_NAME = "_writer.lock"
LEASE_SECONDS = 60.0

_ADVICE = "stop the other writer, or wait for it to end; nothing was written"


def _owner(purpose: str) -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "purpose": purpose, "since": time.time()}


def _described(text: str) -> str:
    try:
        owner = json.loads(text)
        return f"{owner['purpose']} (pid {owner['pid']} on {owner['host']})"
    except (ValueError, KeyError, TypeError):
        return "an unknown writer"


def local_folder(location: str) -> Path | None:
    """Return the folder of a location on the local file system, None elsewhere."""
    url = urlparse(location)
    return Path(url.path if url.scheme else location) if url.scheme in ("", "file") else None


class WriterLock:
    """The lock, as a context manager.

    Parameters
    ----------
    warehouse : Warehouse or Place
        What is to be written; a place where there is no Spark.
    purpose : str
        Shown to whoever finds the lock taken.

    Raises
    ------
    LockError
        On entry, where another writer holds it; from `check`, where it was lost meanwhile.

    """

    def __init__(self, warehouse: Warehouse | Place, purpose: str) -> None:
        self._warehouse = warehouse
        self._owner = json.dumps(_owner(purpose))
        self._folder = local_folder(warehouse.root)
        self._handle: Any = None
        self._stop = threading.Event()
        self._lost: str | None = None

    def __enter__(self) -> WriterLock:
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
        elif self._lost is None:
            self._lease().delete()

    def check(self) -> None:
        """Raise where the lock is no longer ours. Called before each commit."""
        if self._lost is not None:
            raise LockError(f"the writer lock was lost: {self._lost}", advice="start again")

    def _lock_file(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / LOCK_NAME).open("a+", encoding="utf-8")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            holder = _described(handle.read())
            handle.close()
            raise LockError(
                f"the warehouse is being written by {holder}", warehouse=str(folder), advice=_ADVICE
            ) from None
        handle.truncate(0)
        handle.write(self._owner)
        handle.flush()
        self._handle = handle

    def _lease(self) -> LeaseFile:
        if isinstance(self._warehouse, Place):
            return ArrowFile(self._warehouse.fs, self._warehouse.at(LOCK_NAME))
        return HadoopFile(*self._warehouse.hadoop_file(self._warehouse.path(LOCK_NAME)))

    def _take_lease(self) -> None:
        lease = self._lease()
        age = lease.age()
        if age is not None:
            if age < LEASE_SECONDS:
                raise LockError(
                    f"the warehouse is being written by {_described(lease.read())}",
                    warehouse=self._warehouse.root,
                    advice=f"{_ADVICE}; the lock of a killed writer is free after {LEASE_SECONDS:.0f} s",
                )
            lease.delete()
        try:
            lease.write(self._owner, overwrite=False)
        except Exception as error:
            raise LockError(f"the writer lock was taken first by another: {error}", advice=_ADVICE) from error
        threading.Thread(target=self._renew, name="writer-lock", daemon=True).start()

    def _renew(self) -> None:
        lease = self._lease()
        while not self._stop.wait(LEASE_SECONDS / 6):
            with contextlib.suppress(FileNotFoundError):
                if lease.age() is None or lease.read() != self._owner:
                    self._lost = "another writer has taken it over"
                    return
                lease.write(self._owner, overwrite=True)
