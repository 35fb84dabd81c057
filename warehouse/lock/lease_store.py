"""The lease as an object of S3, Google Cloud Storage, Azure, or a store with one of their protocols.

`obstore` sends conditions as If-None-Match and If-Match to S3 and Azure, as generations to Google Cloud Storage. Before
the lease is taken, requests that the store must refuse show whether it honours conditions.
"""

import uuid as uuids
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlparse

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import from_url

from schemas.errors import UnsupportedError
from warehouse.delta.log_files import CONDITIONAL_SCHEMES
from warehouse.lock.lease import StoredLease

_REFUSALS = (AlreadyExistsError, PreconditionError, NotFoundError, FileNotFoundError)
"""Errors by which a store refuses a conditional write."""


class ObjectLease:
    """A lease as one object of a store (a `warehouse.lock.lease.LeaseStore`)."""

    def __init__(self, store: Any, name: str, root: str) -> None:
        self._store, self._name, self._root = store, name, root

    def now(self) -> float:
        """Return the store's time, by writing a test object, and check that the store honours conditions.

        Raises:
            UnsupportedError: The store does not honour conditions.
        """
        name = f"{self._name}.{uuids.uuid4()}"
        with _as_os_error():
            first = self._put(name, "1", "create")
            try:
                moment: float = obstore.head(self._store, name)["last_modified"].timestamp()
                if first is None or self._put(name, "2", "create") is not None:
                    raise self._unsupported("If-None-Match: *")
                if self._put(name, "3", first) is None or self._put(name, "4", first) is not None:
                    raise self._unsupported("If-Match")
            finally:
                obstore.delete(self._store, name)
        return moment

    def read(self) -> StoredLease | None:
        """Return the stored lease, None if there is none."""
        with _as_os_error():
            try:
                found = obstore.get(self._store, self._name)
                meta = found.meta
                moment = meta["last_modified"].timestamp()
                return StoredLease(bytes(found.bytes()).decode(), _tag(meta), moment)
            except (NotFoundError, FileNotFoundError):
                return None

    def create(self, text: str) -> object | None:
        """Write the lease if there is none, and return its tag; return None if there is one."""
        with _as_os_error():
            return self._put(self._name, text, "create")

    def replace(self, text: str, tag: object) -> object | None:
        """Replace the lease if it has this tag, and return the new tag; return None if it has another tag."""
        with _as_os_error():
            return self._put(self._name, text, tag)

    def _put(self, name: str, text: str, mode: Any) -> object | None:
        """Write an object: a new one (`mode` "create"), or in place of the one with the tag `mode`."""
        try:
            return _tag(obstore.put(self._store, name, text.encode(), mode=mode))
        except _REFUSALS:
            return None

    def _unsupported(self, condition: str) -> UnsupportedError:
        return UnsupportedError(
            f"the store does not honour conditional writes ({condition}), so two writers could write at once",
            warehouse=self._root,
            advice="use a store, or a release of it, with conditional writes (docs/stores.md)",
        )


def _tag(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the ETag and the version of an object, those that the store's answer has: they identify its content."""
    return {name: metadata[name] for name in ("e_tag", "version") if metadata[name] is not None}


def object_lease(root: str, name: str) -> ObjectLease:
    """Return the lease of a warehouse, as an object of its store.

    Raises:
        UnsupportedError: The store has no conditional writes, or cannot be opened.
    """
    scheme = urlparse(root).scheme
    if scheme not in CONDITIONAL_SCHEMES:
        raise UnsupportedError(
            f"there is no writer lock for {scheme}://",
            warehouse=root,
            advice=f"use a local folder, or one of {', '.join(sorted(CONDITIONAL_SCHEMES))}",
        )
    try:
        store = from_url(root)
    except (BaseError, ValueError) as error:
        raise UnsupportedError(f"the store cannot be opened: {error}", warehouse=root) from error
    return ObjectLease(store, name, root)


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except BaseError as error:
        raise OSError(str(error)) from error
