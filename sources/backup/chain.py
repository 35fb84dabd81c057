"""Orders the archives of one replicaset, and finds missing links between them.

An incremental archive continues an earlier backup, named by `previous_backup_id`; backups in which the replicaset
failed are skipped. If that backup is missing, or ended at another vclock, rows are missing between the two. No I/O.

Source: `markProblems` and `vclockProblems` in `cli/backup/chain/build.go` of tarantool/tt 2.14.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sources.backup.manifest import BackupArchive, BackupManifest, Vclock


@dataclass(frozen=True)
class MissingLink:
    """Logs between two archives that are in no archive.

    Parameters
    ----------
    replicaset, backup : str
        Of the archive after the missing logs.
    begin : mapping of int to int or None
        The vclock at which that archive begins.
    reason : str

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
    """The archives of one replicaset in a storage.

    Parameters
    ----------
    replicaset : str
        Its uuid.
    archives : tuple of BackupArchive
        The oldest first.
    missing : tuple of MissingLink

    """

    replicaset: str
    archives: tuple[BackupArchive, ...]
    missing: tuple[MissingLink, ...]


def backup_chains(manifests: Iterable[BackupManifest]) -> list[BackupChain]:
    """Return the chain of each replicaset, by uuid."""
    by_id = {one.backup: one for one in manifests}
    found: dict[str, list[BackupArchive]] = {}
    for one in by_id.values():
        for archive in one.archives:
            found.setdefault(archive.replicaset, []).append(archive)
    return [
        BackupChain(
            uuid,
            tuple(sorted(archives, key=_time)),
            tuple(_missing(sorted(archives, key=_time), by_id)),
        )
        for uuid, archives in sorted(found.items())
    ]


def format_vclock(vclock: Vclock) -> str:
    """Return a vclock as text."""
    return "{" + ", ".join(f"{id_}: {lsn}" for id_, lsn in sorted(vclock.items())) + "}"


def _time(archive: BackupArchive) -> tuple[str, str]:
    return archive.created, archive.backup


def _missing(archives: Iterable[BackupArchive], by_id: Mapping[str, BackupManifest]) -> Iterable[MissingLink]:
    own = {one.backup: one for one in archives}
    for archive in archives:
        if not archive.is_full:
            reason = _reason(archive, own, by_id)
            if reason is not None:
                yield MissingLink(archive.replicaset, archive.backup, archive.begin, reason)


def _reason(
    archive: BackupArchive, own: Mapping[str, BackupArchive], by_id: Mapping[str, BackupManifest]
) -> str | None:
    """Return why an archive continues no other one; None if it continues one."""
    link, passed = by_id[archive.backup].previous, {archive.backup}
    while link is not None and link not in passed:
        passed.add(link)
        if link not in by_id:
            return f"backup {link} is missing"
        if link in own:
            before = own[link]
            if _known(before.end) == _known(archive.begin or {}):
                return None
            return f"backup {link} ends at {format_vclock(before.end)}"
        link = by_id[link].previous
    return "it continues no backup of the replicaset"


def _known(vclock: Vclock) -> dict[int, int]:
    """Return a vclock without components that do not compare between instances."""
    return {id_: lsn for id_, lsn in vclock.items() if id_ != 0 and lsn > 0}
