"""Parses the manifests of a cluster's backups, and orders the archives of each replicaset by time.

A storage has `manifests/<backup id>.json` and `data/<backup id>-<replicaset uuid>.tar.zst`. For each replicaset, a
manifest has one instance and its archive, or the error of a failed backup. The archive of a full backup has a snapshot;
that of an incremental backup has only the logs from `vclock_begin` on. An incremental backup continues an earlier one,
which `previous_backup_id` names. If the earlier one is missing, or ended at another vclock, rows are missing between
the two. An earlier backup in which this replicaset failed is skipped, and the one before it is used. No I/O.

Source: `cli/backup/manifest.go`, `cli/backup/storage/keys.go`, `cli/backup/types.go`, and `markProblems` and
`vclockProblems` in `cli/backup/chain/build.go`, of tarantool/tt 2.14.
"""

import json
from collections.abc import Iterable, Mapping
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
    """The archive of one replicaset in one backup."""

    backup_id: str
    created_at: str
    """When the backup was made, as text; such texts sort by time."""
    replicaset_uuid: str
    instance_uuid: str
    """Uuids of the replicaset, and of the instance whose files were archived."""
    path: str
    checksum: str | None
    """SHA-256 of the archive's bytes, in lower case."""
    is_full: bool
    """Whether the archive has a snapshot; otherwise it has only logs."""
    begin_vclock: Vclock | None
    """The vclock at which an incremental backup begins; None if the manifest has none."""
    end_vclock: Vclock


@dataclass(frozen=True)
class BackupManifest:
    """The parsed manifest of one backup of a cluster."""

    backup_id: str
    previous_id: str | None
    """The id of the backup that this one continues; None for the first one of a chain."""
    archives: tuple[BackupArchive, ...]
    """One per replicaset, sorted by its uuid."""
    errors_by_uuid: Mapping[str, str]
    """For each replicaset whose backup failed, by its uuid: the error text."""


def parse_manifest(data: bytes, file: str) -> BackupManifest:
    """Parse a manifest in JSON; raise BackupError, with the name `file`, if it is of no known version."""
    try:
        document = json.loads(data)
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise BackupError(
                f"a manifest of schema version {version}", file=file, advice=f"{SCHEMA_VERSION} can be read"
            )
        backup_id, previous_id = (
            str(document["backup_id"]),
            str(document.get("previous_backup_id") or "") or None,
        )
        created_at, shards = str(document["creation_time"]), document["shards"]
        archives = [
            _parse_archive(backup_id, created_at, uuid, shard["instance"])
            for uuid, shard in sorted(shards.items())
            if shard.get("instance")
        ]
        errors_by_uuid = {
            str(UUID(uuid)): str(shard.get("error") or "no reason is given")
            for uuid, shard in sorted(shards.items())
            if not shard.get("instance")
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackupError(f"not a manifest of a backup: {error!r}", file=file) from None
    return BackupManifest(backup_id, previous_id, tuple(archives), errors_by_uuid)


def _parse_archive(
    backup_id: str, created_at: str, replicaset_uuid: str, instance: Mapping[str, Any]
) -> BackupArchive:
    artifact = instance["artifact"]
    kind = artifact["type"]
    if kind not in (FULL, INCREMENTAL):
        raise ValueError(f"a backup of type {kind}")
    path = str(artifact["path"])
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"an archive outside of the storage: {path}")
    begin = instance.get("vclock_begin")
    return BackupArchive(
        backup_id,
        created_at,
        str(UUID(replicaset_uuid)),
        str(UUID(instance["instance_uuid"])),
        path,
        str(artifact.get("checksum_sha256") or "").lower() or None,
        kind == FULL,
        None if begin is None else _parse_vclock(begin),
        _parse_vclock(instance["vclock_end"]),
    )


def _parse_vclock(value: Mapping[str, Any]) -> Vclock:
    return {int(id_): int(lsn) for id_, lsn in value.items()}


@dataclass(frozen=True)
class ChainGap:
    """A gap before an archive: the logs before it are in no archive of the replicaset."""

    replicaset_uuid: str
    backup_id: str
    """Uuid of the replicaset, and id of the backup with the archive after the gap."""
    begin_vclock: Vclock | None
    """The vclock at which this archive begins; None if the manifest has none."""
    reason: str
    """Why the logs are missing."""

    def __str__(self) -> str:
        begin = "" if self.begin_vclock is None else f", which begins at {format_vclock(self.begin_vclock)}"
        where = f"replicaset {self.replicaset_uuid}: rows are missing before backup {self.backup_id}"
        return f"{where}{begin}: {self.reason}"


@dataclass(frozen=True)
class BackupChain:
    """The archives of one replicaset in a storage, and the gaps between them."""

    replicaset_uuid: str
    archives: tuple[BackupArchive, ...]
    """The oldest first."""
    gaps: tuple[ChainGap, ...]
    """In the order of the archives that follow them."""


def backup_chains(manifests: Iterable[BackupManifest]) -> list[BackupChain]:
    """Return one chain per replicaset, sorted by the replicaset's uuid."""
    manifests_by_id = {manifest.backup_id: manifest for manifest in manifests}
    archives_by_uuid: dict[str, list[BackupArchive]] = {}
    for manifest in manifests_by_id.values():
        for archive in manifest.archives:
            archives_by_uuid.setdefault(archive.replicaset_uuid, []).append(archive)
    return [
        BackupChain(
            uuid,
            tuple(sorted(archives, key=_creation_sort_key)),
            tuple(_find_gaps(sorted(archives, key=_creation_sort_key), manifests_by_id)),
        )
        for uuid, archives in sorted(archives_by_uuid.items())
    ]


def format_vclock(vclock: Vclock) -> str:
    """Return a vclock as text such as `{1: 5, 2: 7}`, sorted by replica id."""
    return "{" + ", ".join(f"{id_}: {lsn}" for id_, lsn in sorted(vclock.items())) + "}"


def _creation_sort_key(archive: BackupArchive) -> tuple[str, str]:
    return archive.created_at, archive.backup_id


def _find_gaps(
    archives: Iterable[BackupArchive], manifests_by_id: Mapping[str, BackupManifest]
) -> Iterable[ChainGap]:
    archives_by_id = {archive.backup_id: archive for archive in archives}
    for archive in archives:
        if not archive.is_full:
            reason = _gap_reason(archive, archives_by_id, manifests_by_id)
            if reason is not None:
                yield ChainGap(archive.replicaset_uuid, archive.backup_id, archive.begin_vclock, reason)


def _gap_reason(
    archive: BackupArchive,
    archives_by_id: Mapping[str, BackupArchive],
    manifests_by_id: Mapping[str, BackupManifest],
) -> str | None:
    link, visited = manifests_by_id[archive.backup_id].previous_id, {archive.backup_id}
    while link is not None and link not in visited:
        visited.add(link)
        if link not in manifests_by_id:
            return f"backup {link} is missing"
        if link in archives_by_id:
            before = archives_by_id[link]
            if _comparable_lsns(before.end_vclock) == _comparable_lsns(archive.begin_vclock or {}):
                return None
            return f"backup {link} ends at {format_vclock(before.end_vclock)}"
        link = manifests_by_id[link].previous_id
    return "its chain has no earlier backup of the replicaset"


def _comparable_lsns(vclock: Vclock) -> dict[int, int]:
    """Return a vclock without lsns of 0, and without replica id 0, whose lsn each instance counts by itself."""
    return {id_: lsn for id_, lsn in vclock.items() if id_ != 0 and lsn > 0}
