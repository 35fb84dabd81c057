"""The lease as an object of S3, Google Cloud Storage, Azure, or a store that speaks like one of them.

Conditions are If-None-Match and If-Match for S3 and Azure, generations for Google Cloud Storage, as `obstore` sends
them. A store that does not honour them is found out before the lease is taken, by requests that it must refuse.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlparse

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import from_url

from schemas.errors import UnsupportedError
from warehouse.lease import StoredLease

CONDITIONAL_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
"""Stores that a lease can be an object of."""

_REFUSED = (AlreadyExistsError, PreconditionError, NotFoundError, FileNotFoundError)


class ObjectLease:
    """A lease as one object.

    Parameters
    ----------
    store : obstore.store.ObjectStore
    name : str
        Of the object.
    root : str
        The warehouse, for messages.

    """

    def __init__(self, store: Any, name: str, root: str) -> None:
        self._store, self._name, self._root = store, name, root

    def now(self) -> float:
        """Return the store's time, from an object written for it, and check that the store honours conditions.

        Raises
        ------
        UnsupportedError
            They are not.

        """
        name = f"{self._name}.{uuids.uuid4()}"
        with _as_os_error():
            first = self._create(name, "1")
            try:
                moment: float = obstore.head(self._store, name)["last_modified"].timestamp()
                if first is None or self._create(name, "2") is not None:
                    raise self._unsupported("If-None-Match: *")
                if self._replace(name, "3", first) is None or self._replace(name, "4", first) is not None:
                    raise self._unsupported("If-Match")
            finally:
                obstore.delete(self._store, name)
        return moment

    def read(self) -> StoredLease | None:
        """Return the lease, None where there is none."""
        with _as_os_error():
            try:
                found = obstore.get(self._store, self._name)
                meta = found.meta
                moment = meta["last_modified"].timestamp()
                return StoredLease(bytes(found.bytes()).decode(), _tag(meta), moment)
            except (NotFoundError, FileNotFoundError):
                return None

    def create(self, text: str) -> object | None:
        """Write the lease where there is none, and return its tag; None where there is one."""
        with _as_os_error():
            return self._create(self._name, text)

    def replace(self, text: str, tag: object) -> object | None:
        """Write the lease over the one with a tag, and return its new tag; None where it is another one now."""
        with _as_os_error():
            return self._replace(self._name, text, tag)

    def _create(self, name: str, text: str) -> object | None:
        return self._put(name, text, "create")

    def _replace(self, name: str, text: str, tag: object) -> object | None:
        return self._put(name, text, tag)

    def _put(self, name: str, text: str, mode: Any) -> object | None:
        try:
            return _tag(obstore.put(self._store, name, text.encode(), mode=mode))
        except _REFUSED:
            return None

    def _unsupported(self, condition: str) -> UnsupportedError:
        return UnsupportedError(
            f"the store does not honour conditional writes ({condition}): nothing keeps two writers apart there",
            warehouse=self._root,
            advice="use a store or a release of it that does (docs/operation.md, Stores)",
        )


def _tag(names: Mapping[str, Any]) -> dict[str, str]:
    return {name: names[name] for name in ("e_tag", "version") if names[name] is not None}


def object_lease(root: str, name: str) -> ObjectLease:
    """Return the lease of a warehouse.

    Parameters
    ----------
    root : str
        The folder of the database, as a URI.
    name : str
        Of the object in it.

    Raises
    ------
    UnsupportedError
        No lease is known for the store.

    """
    scheme = urlparse(root).scheme
    if scheme not in CONDITIONAL_SCHEMES:
        raise UnsupportedError(
            f"no writer lock is known at {scheme}://",
            warehouse=root,
            advice=f"use a folder, or one of {', '.join(sorted(CONDITIONAL_SCHEMES))}",
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
