"""Parses the manifest of one backup of a cluster: which archive each replicaset has, and of which instance.

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
        Uuids of the replicaset, and of the instance whose files were archived.
    path : str
        Path of the archive in the storage.
    checksum : str or None
        SHA-256 of the archive's bytes, in lower case.
    is_full : bool
        Whether the archive has a snapshot; otherwise it has only logs.
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
    """The parsed manifest of one backup of a cluster.

    Parameters
    ----------
    backup : str
        The id of the backup.
    previous : str or None
        The id of the backup that this one continues; None for the first one of a chain.
    archives : tuple of BackupArchive
        One per replicaset, sorted by its uuid.
    failures : mapping of str to str
        For each replicaset whose backup failed, by uuid: the reason.

    """

    backup: str
    previous: str | None
    archives: tuple[BackupArchive, ...]
    failures: Mapping[str, str]


def parse_manifest(data: bytes, file: str) -> BackupManifest:
    """Parse a manifest, which is JSON; `file` is its name in errors.

    Raises
    ------
    BackupError
        The data is not a manifest of a known version.

    """
    try:
        document = json.loads(data)
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise BackupError(
                f"a manifest of schema version {version}", file=file, advice=f"{SCHEMA_VERSION} can be read"
            )
        backup, previous = str(document["backup_id"]), str(document.get("previous_backup_id") or "") or None
        created, shards = str(document["creation_time"]), document["shards"]
        archives = [
            _parse_archive(backup, created, uuid, shard["instance"])
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


def _parse_archive(backup: str, created: str, replicaset: str, instance: Mapping[str, Any]) -> BackupArchive:
    artifact = instance["artifact"]
    kind = artifact["type"]
    if kind not in (FULL, INCREMENTAL):
        raise ValueError(f"a backup of type {kind}")
    path = str(artifact["path"])
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"an archive outside of the storage: {path}")
    begin = instance.get("vclock_begin")
    return BackupArchive(
        backup,
        created,
        str(UUID(replicaset)),
        str(UUID(instance["instance_uuid"])),
        path,
        str(artifact.get("checksum_sha256") or "").lower() or None,
        kind == FULL,
        None if begin is None else _parse_vclock(begin),
        _parse_vclock(instance["vclock_end"]),
    )


def _parse_vclock(value: Mapping[str, Any]) -> Vclock:
    return {int(id_): int(lsn) for id_, lsn in value.items()}
