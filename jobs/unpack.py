"""Unpack backups of `tt backup` into directories that the stream reads as sources: `aggregator unpack`.

Archives that were unpacked before are skipped, so the command can run after each backup. The format is in
`sources.backup`.
"""

import sys
from collections.abc import Collection
from pathlib import Path

from jobs.runtime.output import say, say_json
from schemas.errors import BackupError
from sources.backup.manifest import BackupChain, backup_chains
from sources.backup.unpack import BackupStorage, archive_directory, is_unpacked, unpack


def unpack_all(location: str, into: Path, replicasets: Collection[str] = (), *, as_json: bool = False) -> int:
    """Unpack new archives, print them and the missing ones; return 1 if one is missing or damaged, else 0.

    Args:
        into: A local folder; its subfolders `<replicaset uuid>/<instance uuid>` become the directories of sources.
    """
    storage = BackupStorage(location)
    manifests = storage.manifests()
    is_complete = True
    for chain in backup_chains(manifests):
        if not replicasets or chain.replicaset_uuid in replicasets:
            is_complete = _unpack_chain(storage, chain, into, as_json=as_json) and is_complete
    for manifest in manifests:
        for uuid, reason in manifest.errors_by_uuid.items():
            if not replicasets or uuid in replicasets:
                say(f"backup {manifest.backup_id} has nothing of replicaset {uuid}: {reason}", err=True)
    return 0 if is_complete else 1


def _unpack_chain(storage: BackupStorage, chain: BackupChain, into: Path, *, as_json: bool) -> bool:
    """Unpack one replicaset's archives that were not unpacked yet; return False if one is missing or damaged."""
    is_complete = not chain.gaps
    for link in chain.gaps:
        _print_event(
            {"missing": str(link), "backup": link.backup_id, "replicaset": link.replicaset_uuid},
            as_json,
            f"gap: {link}",
        )
    for archive in chain.archives:
        if is_unpacked(into, archive):
            continue
        try:
            names = unpack(storage, archive, into)
        except BackupError as error:
            is_complete = False
            say(f"not unpacked: {error}", err=True)
            continue
        directory = str(archive_directory(into, archive))
        _print_event(
            {
                "backup": archive.backup_id,
                "replicaset": chain.replicaset_uuid,
                "directory": directory,
                "files": names,
            },
            as_json,
            f"backup {archive.backup_id}: {len(names)} files into {directory}",
        )
    return is_complete


def _print_event(event: dict[str, object], as_json: bool, text: str) -> None:
    if as_json:
        say_json(event)
    else:
        say(text)


if __name__ == "__main__":
    from jobs.main import main

    sys.exit(main("unpack"))
