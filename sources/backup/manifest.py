"""Parses the manifests of a cluster's backups, and orders the archives of each replicaset by time.

A storage has `manifests/<backup id>.json` and `data/<backup id>-<replicaset uuid>.tar.zst`. A manifest has for each
replicaset one instance and its archive, or the error why there is none; a full backup has a snapshot, an incremental
one only the logs from `vclock_begin` on. It continues an earlier backup, named by `previous_backup_id`: if that is
missing, or ended at another vclock, rows are missing between the two. Backups in which the replicaset failed are
skipped. No I/O.

Source: `cli/backup/manifest.go`, `cli/backup/storage/keys.go`, `cli/backup/types.go`, and `markProblems` and
`vclockProblems` in `cli/backup/chain/build.go`, of tarantool/tt 2.14.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class MissingLink:
    """A gap before an archive: the logs before it are in no archive of the replicaset.

    Parameters
    ----------
    replicaset, backup : str
        Uuid of the replicaset, and id of the backup with the archive after the gap.
    begin : mapping of int to int or None
        The vclock at which this archive begins; None if the manifest has none.
    reason : str
        Why the logs are missing.

    """

    replicaset: str
    backup: str
    begin: Vclock | None
    reason: str

    def __str__(self) -> str:
        begin = "" if self.begin is None else f", which begins at {format_vclock(self.begin)}"
        return f"replicaset {self.replicaset}: rows are missing before backup {self.backup}{begin}: {self.reason}"


@dataclass(frozen=True)
class BackupChain:
    """The archives of one replicaset in a storage, and the gaps between them.

    Parameters
    ----------
    replicaset : str
        Uuid of the replicaset.
    archives : tuple of BackupArchive
        The oldest first.
    missing : tuple of MissingLink
        The gaps.

    """

    replicaset: str
    archives: tuple[BackupArchive, ...]
    missing: tuple[MissingLink, ...]


def backup_chains(manifests: Iterable[BackupManifest]) -> list[BackupChain]:
    """Return the chain of each replicaset, sorted by its uuid."""
    by_id = {manifest.backup: manifest for manifest in manifests}
    archives_by_uuid: dict[str, list[BackupArchive]] = {}
    for manifest in by_id.values():
        for archive in manifest.archives:
            archives_by_uuid.setdefault(archive.replicaset, []).append(archive)
    return [
        BackupChain(
            uuid,
            tuple(sorted(archives, key=_creation_order)),
            tuple(_find_gaps(sorted(archives, key=_creation_order), by_id)),
        )
        for uuid, archives in sorted(archives_by_uuid.items())
    ]


def format_vclock(vclock: Vclock) -> str:
    """Return a vclock as text, sorted by replica id."""
    return "{" + ", ".join(f"{id_}: {lsn}" for id_, lsn in sorted(vclock.items())) + "}"


def _creation_order(archive: BackupArchive) -> tuple[str, str]:
    return archive.created, archive.backup


def _find_gaps(
    archives: Iterable[BackupArchive], by_id: Mapping[str, BackupManifest]
) -> Iterable[MissingLink]:
    by_backup = {archive.backup: archive for archive in archives}
    for archive in archives:
        if not archive.is_full:
            reason = _gap_reason(archive, by_backup, by_id)
            if reason is not None:
                yield MissingLink(archive.replicaset, archive.backup, archive.begin, reason)


def _gap_reason(
    archive: BackupArchive, by_backup: Mapping[str, BackupArchive], by_id: Mapping[str, BackupManifest]
) -> str | None:
    """Return why rows are missing before an incremental archive; None if it continues an earlier one."""
    link, visited = by_id[archive.backup].previous, {archive.backup}
    while link is not None and link not in visited:
        visited.add(link)
        if link not in by_id:
            return f"backup {link} is missing"
        if link in by_backup:
            before = by_backup[link]
            if _comparable_lsns(before.end) == _comparable_lsns(archive.begin or {}):
                return None
            return f"backup {link} ends at {format_vclock(before.end)}"
        link = by_id[link].previous
    return "its chain has no earlier backup of the replicaset"


def _comparable_lsns(vclock: Vclock) -> dict[int, int]:
    """Return a vclock without zeros and without component 0, which differs between instances."""
    return {id_: lsn for id_, lsn in vclock.items() if id_ != 0 and lsn > 0}
