"""Reads the manifest of one backup of a cluster: its archives, and the files and instance of each.

A storage has `manifests/<backup id>.json` and `data/<backup id>-<replicaset uuid>.tar.zst`. A manifest has for each
replicaset one instance and its archive, or the error why there is none; a full backup has a snapshot, an incremental
one only the logs from `vclock_begin` on. No I/O.

Source: `cli/backup/manifest.go`, `cli/backup/storage/keys.go` and `cli/backup/types.go` of tarantool/tt 2.14.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from schemas.errors import BackupError

SCHEMA_VERSION = 1

FULL, INCREMENTAL = "full", "incremental"

MANIFESTS, DATA = "manifests", "data"
"""Folders of a storage."""

Vclock = Mapping[int, int]


@dataclass(frozen=True)
class BackupArchive:
    """The archive of one replicaset in one backup.

    Parameters
    ----------
    backup : str
        The id of the backup.
    created : str
        When the backup was made, as text that sorts by time.
    replicaset, instance : str
        Uuids.
    path : str
        Of the archive in the storage.
    checksum : str or None
        SHA-256 of its bytes, in lower case.
    is_full : bool
        Whether it has a snapshot.
    begin : mapping of int to int or None
        The vclock at which an incremental backup begins.
    end : mapping of int to int
        The vclock at which the archive's logs end.

    """

    backup: str
    created: str
    replicaset: str
    instance: str
    path: str
    checksum: str | None
    is_full: bool
    begin: Vclock | None
    end: Vclock


@dataclass(frozen=True)
class BackupManifest:
    """One backup of a cluster.

    Parameters
    ----------
    backup : str
        Its id.
    previous : str or None
        The id of the backup before it in its chain.
    archives : tuple of BackupArchive
        By uuid of the replicaset.
    failures : mapping of str to str
        Uuid of a replicaset whose backup failed, to the reason.

    """

    backup: str
    previous: str | None
    archives: tuple[BackupArchive, ...]
    failures: Mapping[str, str]


def read_manifest(data: bytes, file: str) -> BackupManifest:
    """Return a manifest's content.

    Parameters
    ----------
    data : bytes
        JSON.
    file : str
        Its name in errors.

    Raises
    ------
    BackupError
        The data is not a manifest of a known version.

    """
    try:
        whole = json.loads(data)
        version = whole.get("schema_version")
        if version != SCHEMA_VERSION:
            raise BackupError(
                f"a manifest of schema version {version}", file=file, advice=f"{SCHEMA_VERSION} can be read"
            )
        backup, previous = str(whole["backup_id"]), str(whole.get("previous_backup_id") or "") or None
        created, shards = str(whole["creation_time"]), whole["shards"]
        archives = [
            _archive(backup, created, uuid, shard["instance"])
            for uuid, shard in sorted(shards.items())
            if shard.get("instance")
        ]
        failures = {
            str(UUID(uuid)): str(shard.get("error") or "no reason is given")
            for uuid, shard in sorted(shards.items())
            if not shard.get("instance")
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackupError(f"not a manifest of a backup: {error!r}", file=file) from None
    return BackupManifest(backup, previous, tuple(archives), failures)


def _archive(backup: str, created: str, replicaset: str, one: Mapping[str, Any]) -> BackupArchive:
    artifact = one["artifact"]
    kind = artifact["type"]
    if kind not in (FULL, INCREMENTAL):
        raise ValueError(f"a backup of type {kind}")
    path = str(artifact["path"])
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"an archive outside of the storage: {path}")
    begin = one.get("vclock_begin")
    return BackupArchive(
        backup,
        created,
        str(UUID(replicaset)),
        str(UUID(one["instance_uuid"])),
        path,
        str(artifact.get("checksum_sha256") or "").lower() or None,
        kind == FULL,
        None if begin is None else _vclock(begin),
        _vclock(one["vclock_end"]),
    )


def _vclock(value: Mapping[str, Any]) -> Vclock:
    return {int(id_): int(lsn) for id_, lsn in value.items()}
