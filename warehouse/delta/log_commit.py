"""Writes one commit of a Delta table: the JSON of its actions, at exactly the version after the one that was read.

A commit succeeds only if the log has no commit of this version yet ("put if absent"), so no other commit can come
between what a writer has read and what it writes. delta-rs commits in another way: if others have committed meanwhile,
it checks for conflicts by its own rules and takes a later version; and it cannot write deletion vectors (delta-rs
issue 4512). Not here: what a commit contains (`warehouse.delta.commits`).
"""

import contextlib
import json
import os
import uuid as uuids
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow.fs as pafs

from schemas.errors import UnsupportedError, WarehouseError
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.log_files import CONDITIONAL_SCHEMES, commit_path
from warehouse.delta.table_log import Action

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


class VersionTakenError(WarehouseError):
    """The log has a commit of this version already: somebody else has committed."""


def put_commit(location: WarehouseLocation, table: str, version: int, actions: Iterable[Action]) -> None:
    """Write the commit of a version.

    Raises:
        VersionTakenError: The log has a commit of this version.
        OSError: The store fails; the commit may be there nevertheless.
        UnsupportedError: The store has no conditional writes.
    """
    content = "".join(f"{_ENCODER.encode(action)}\n" for action in actions)
    name = commit_path(version)
    if isinstance(location.fs, pafs.LocalFileSystem):
        created = _create_file(Path(location.at(table, name)), content.encode())
    else:
        created = _create_object(location.uri(table), name, content.encode())
    if not created:
        raise VersionTakenError("somebody else has committed to it meanwhile", table=table, version=version)


def _create_file(path: Path, content: bytes) -> bool:
    """Create a file with its whole content; return False if there is one.

    A link to a finished file is made, so that no reader sees a part of the content, and none is left after a crash.
    """
    part = path.with_name(f".{path.name}.{uuids.uuid4()}.tmp")
    try:
        with part.open("xb") as stream:
            stream.write(content)
        os.link(part, path)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return True


def _create_object(uri: str, name: str, content: bytes) -> bool:
    scheme = urlparse(uri).scheme
    if scheme not in CONDITIONAL_SCHEMES:
        raise UnsupportedError(
            f"{scheme}:// has no conditional writes, so two writers could commit at once",
            warehouse=uri,
            advice=f"use a local folder, or one of {', '.join(sorted(CONDITIONAL_SCHEMES))}",
        )
    # Loaded here, since a warehouse on a local disk does without it.
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
    from obstore.store import from_url

    store: Any = from_url(uri)
    try:
        obstore.put(store, name, content, mode="create")
    except (AlreadyExistsError, PreconditionError):
        return False
    except BaseError as error:
        raise OSError(str(error)) from error
    return True
