"""Unpacks backups in the layout of `tt backup`: files, refused archives, gaps between archives."""

import json
import os
from pathlib import Path

import pytest

from jobs.unpack import unpack_all
from schemas.errors import BackupError
from sources.backup.manifest import backup_chains, parse_manifest
from sources.backup.unpack import UNPACKING_FOLDER, BackupStorage, unpack
from tests.sources.backup.storage import INSTANCE, REPLICASET, add_backup, tar_archive

SNAP, LOG, NEXT = (f"{number:020}.{kind}" for number, kind in ((5, "snap"), (5, "xlog"), (9, "xlog")))


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Return a storage with a full backup and two incremental ones."""
    folder = tmp_path / "storage"
    add_backup(
        folder, "B1", None, {SNAP: b"snapshot", LOG: b"log", "instance_backup.json": b"{}"}, None, {1: 9}
    )
    add_backup(folder, "B2", "B1", {LOG: b"log, longer", NEXT: b"x" * 3_000_000}, {1: 9}, {1: 12, 2: 3})
    add_backup(
        folder,
        "B3",
        "B2",
        {NEXT: b"x", "512/0/00000000000000000003.run": b"run"},
        {1: 12, 2: 3},
        {1: 20, 2: 3},
    )
    return folder


def unpacked_files(into: Path) -> dict[str, bytes]:
    directory = into / REPLICASET / INSTANCE
    files = [path for path in directory.rglob("*") if path.is_file() and ".unpacked" not in path.parts]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_chain_is_unpacked_into_one_directory(storage: Path, tmp_path: Path) -> None:
    assert unpack_all(str(storage), tmp_path / "into") == 0
    assert unpacked_files(tmp_path / "into") == {
        SNAP: b"snapshot",
        LOG: b"log, longer",
        NEXT: b"x" * 3_000_000,
        "512/0/00000000000000000003.run": b"run",
    }


def test_unpacked_archives_are_skipped(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack_all(str(storage), tmp_path / "into")
    assert len(capsys.readouterr().out.splitlines()) == 3
    add_backup(storage, "B4", "B3", {f"{23:020}.xlog": b"new"}, {1: 20, 2: 3}, {1: 25, 2: 3})
    assert unpack_all(str(storage), tmp_path / "into", as_json=True) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["backup"], one["files"]) for one in found] == [("B4", [f"{23:020}.xlog"])]


def test_a_storage_may_be_a_uri(storage: Path, tmp_path: Path) -> None:
    assert unpack_all(storage.as_uri(), tmp_path / "into", [REPLICASET]) == 0
    assert unpack_all(storage.as_uri(), tmp_path / "other", ["22222222-2222-2222-2222-222222222222"]) == 0
    assert len(unpacked_files(tmp_path / "into")) == 4
    assert not (tmp_path / "other").exists()


def test_a_missing_backup_is_reported_as_a_gap_by_its_id(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (storage / "manifests" / "B2.json").unlink()
    assert unpack_all(str(storage), tmp_path / "into") == 1
    assert (
        f"gap: replicaset {REPLICASET}: rows are missing before backup B3, which begins at {{1: 12, 2: 3}}: "
        "backup B2 is missing\n"
    ) in capsys.readouterr().out


def test_a_backup_that_begins_at_another_vclock_is_a_gap(storage: Path) -> None:
    add_backup(storage, "B3", "B2", {NEXT: b"x"}, {1: 13, 2: 3}, {1: 20})
    (chain,) = backup_chains(BackupStorage(str(storage)).manifests())
    assert [one.reason for one in chain.gaps] == ["backup B2 ends at {1: 12, 2: 3}"]


def test_a_backup_in_which_the_replicaset_failed_is_skipped(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_backup(storage, "B2", "B1", None, None, {})
    add_backup(storage, "B3", "B2", {NEXT: b"x"}, {1: 9}, {1: 20})
    (chain,) = backup_chains(BackupStorage(str(storage)).manifests())
    assert chain.gaps == ()
    unpack_all(str(storage), tmp_path / "into")
    assert f"backup B2 has nothing of replicaset {REPLICASET}: timeout" in capsys.readouterr().err


def test_a_missing_archive_is_reported_and_the_others_are_unpacked(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next((storage / "data").glob("B2-*")).unlink()
    assert unpack_all(str(storage), tmp_path / "into") == 1
    assert (
        f"not unpacked: the archive is missing (backup B2, file data/B2-{REPLICASET}"
        in capsys.readouterr().err
    )
    assert unpacked_files(tmp_path / "into")[LOG] == b"log"


@pytest.mark.parametrize("where", ["begin", "end"])
def test_a_damaged_archive_leaves_nothing(storage: Path, tmp_path: Path, where: str) -> None:
    archive = next((storage / "data").glob("B2-*"))
    data = bytearray(archive.read_bytes())
    archive.write_bytes(bytes(data[:-20]) if where == "end" else b"\0\0" + bytes(data[2:]))
    open_archive = BackupStorage(str(storage))
    (chain,) = backup_chains(open_archive.manifests())
    with pytest.raises(BackupError, match="B2"):
        unpack(open_archive, chain.archives[1], tmp_path / "into")
    assert unpacked_files(tmp_path / "into") == {}
    assert not (tmp_path / "into" / REPLICASET / INSTANCE / UNPACKING_FOLDER).exists()


def test_an_archive_with_another_checksum_is_refused(storage: Path, tmp_path: Path) -> None:
    next((storage / "data").glob("B1-*")).write_bytes(tar_archive({SNAP: b"snapshoT"}))
    open_archive = BackupStorage(str(storage))
    (chain,) = backup_chains(open_archive.manifests())
    with pytest.raises(BackupError, match="SHA-256"):
        unpack(open_archive, chain.archives[0], tmp_path / "into")
    assert unpacked_files(tmp_path / "into") == {}


def test_an_entry_outside_of_the_directory_is_refused(tmp_path: Path) -> None:
    add_backup(tmp_path / "storage", "B1", None, {"../out.snap": b"snapshot"}, None, {1: 9})
    open_archive = BackupStorage(str(tmp_path / "storage"))
    (chain,) = backup_chains(open_archive.manifests())
    with pytest.raises(BackupError, match="unexpected entry"):
        unpack(open_archive, chain.archives[0], tmp_path / "into")
    assert not list(tmp_path.rglob("out.snap"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not a manifest"),
        (b"[]", "not a manifest"),
        (b'{"schema_version": 2}', "schema version 2"),
        (b'{"schema_version": 1, "backup_id": "B"}', "not a manifest"),
    ],
)
def test_a_file_that_is_not_a_manifest_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BackupError, match=message) as refused:
        parse_manifest(data, "B.json")
    assert "B.json" in str(refused.value)


def test_a_folder_without_manifests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="no folder `manifests`"):
        BackupStorage(os.fspath(tmp_path)).manifests()
