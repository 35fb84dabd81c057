"""Orders the backup archives of each replicaset by time, and finds gaps between them.

An incremental archive continues an earlier backup, named by `previous_backup_id`; backups in which the replicaset
failed are skipped. If the earlier backup is missing, or ended at another vclock, rows are missing between the two.
No I/O.

Source: `markProblems` and `vclockProblems` in `cli/backup/chain/build.go` of tarantool/tt 2.14.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sources.backup.manifest import BackupArchive, BackupManifest, Vclock


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
