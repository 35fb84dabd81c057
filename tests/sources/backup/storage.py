"""Creates storages of backups for tests, in the layout of `tt backup upload`."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

REPLICASET = "11111111-1111-1111-1111-111111111111"
INSTANCE = "aaaaaaaa-0000-0000-0000-000000000001"


def tar_archive(files: Mapping[str, bytes]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return zstandard.compress(plain.getvalue())


def add_backup(
    storage: Path,
    backup: str,
    previous: str | None,
    files: Mapping[str, bytes] | None,
    begin: Mapping[int, int] | None,
    end: Mapping[int, int],
    replicaset: str = REPLICASET,
    instance: str = INSTANCE,
) -> Path:
    """Add a backup of one replicaset, and return its archive; without files, the replicaset's backup failed."""
    archive = storage / "data" / f"{backup}-{replicaset}.tar.zst"
    manifest: dict[str, Any] = {
        "schema_version": 1,
        "backup_id": backup,
        "previous_backup_id": previous,
        "base_full_backup_id": "B1",
        "status": "OK",
        "creation_time": f"2026-03-12T12:00:0{backup[-1]}Z",
        "shards": {replicaset: {"error": "timeout"}},
        "topology": {"replicasets": {}},
        "warnings": [],
    }
    if files is not None:
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.write_bytes(tar_archive(files))
        manifest["shards"][replicaset] = {
            "instance": {
                "instance_uuid": instance,
                "instance_name": "storage-001",
                "hostname": "node",
                "vclock_begin": None if begin is None else _text(begin),
                "vclock_end": _text(end),
                "artifact": {
                    "path": f"data/{archive.name}",
                    "size_bytes": archive.stat().st_size,
                    "checksum_sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
                    "compression": "zstd",
                    "files": list(files),
                    "recovery_points": [],
                    "type": "full" if begin is None else "incremental",
                },
            }
        }
    (storage / "manifests").mkdir(parents=True, exist_ok=True)
    (storage / "manifests" / f"{backup}.json").write_text(json.dumps(manifest))
    return archive


def files_of(paths: Sequence[Path]) -> dict[str, bytes]:
    """Read files; return their content by name."""
    return {path.name: path.read_bytes() for path in sorted(paths)}


def _text(vclock: Mapping[int, int]) -> dict[str, int]:
    return {str(id_): lsn for id_, lsn in vclock.items()}
