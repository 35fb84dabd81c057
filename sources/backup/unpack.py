"""Writes the log files of backup archives into directories, without loading an archive or a file into memory.

An archive is a tar of log files, compressed by zstd. Its files are first written to a temporary folder. They are
renamed into place after the archive was read to its end and its checksum was compared with the manifest, so readers of
the directory see complete files only. Two consecutive archives may both have the log at which the first one ends; the
longer of the two files stays.

Source: `cli/backup/archive/archive.go` of tarantool/tt 2.14. `sources.backup.manifest` orders archives.
"""

import hashlib
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pyarrow.fs as pafs
import zstandard

from schemas.errors import BackupError
from sources.backup.manifest import DATA, MANIFESTS, BackupArchive, BackupManifest, parse_manifest
from sources.xlog.reader.file_buffer import open_fs

LOG_SUFFIXES = frozenset({".snap", ".xlog", ".vylog", ".run", ".index"})
"""Suffixes of the files that are unpacked; other files, such as a copy of the manifest, are skipped."""

CHUNK_BYTES = 1 << 20

UNPACKING_FOLDER = ".unpacking"
UNPACKED_FOLDER = ".unpacked"
"""Folders of an instance: for files that are being unpacked, and for one empty file per unpacked archive."""


class BackupStorage:
    """A storage to which `tt backup` uploads backups.

    `location` names the folder that has `manifests` and `data`: a local path, or any URI that `pyarrow.fs` opens.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._fs, self._path = open_fs(location.rstrip("/"))

    def manifests(self) -> list[BackupManifest]:
        """Return all manifests of the storage; raise BackupError if it has no folder of them, or another file there."""
        folder = f"{self._path}/{MANIFESTS}"
        if self._fs.get_file_info(folder).type != pafs.FileType.Directory:
            raise BackupError(
                "there is no folder `manifests`",
                storage=self.location,
                advice="name the same folder as for `tt backup upload`, with its prefix",
            )
        infos = self._fs.get_file_info(pafs.FileSelector(folder))
        manifests = []
        for info in sorted(infos, key=lambda info: str(info.base_name)):
            if info.type == pafs.FileType.File and info.base_name.endswith(".json"):
                with self._fs.open_input_stream(info.path) as stream:
                    manifests.append(parse_manifest(stream.read(), info.base_name))
        return manifests

    def open_archive(self, archive: BackupArchive) -> Any:
        """Open an archive and return its bytes as a stream; raise BackupError if it is missing."""
        for path in (f"{self._path}/{archive.path}", f"{self._path}/{DATA}/{archive.path}"):
            if self._fs.get_file_info(path).type == pafs.FileType.File:
                return self._fs.open_input_stream(path, compression=None)
        raise BackupError("the archive is missing", backup=archive.backup_id, file=archive.path)


class _HashingReader:
    """Reads a stream and computes the SHA-256 of its bytes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = bytes(self._stream.read(size if size >= 0 else CHUNK_BYTES))
        self.digest.update(data)
        return data

    def read_rest(self) -> None:
        """Read the remaining bytes, so that the hash covers the complete stream."""
        while self.read(CHUNK_BYTES):
            pass


def archive_directory(into: Path, archive: BackupArchive) -> Path:
    """Return the directory in `into` for the files of an archive's instance; the stream reads it as one source."""
    return into / archive.replicaset_uuid / archive.instance_uuid


def is_unpacked(into: Path, archive: BackupArchive) -> bool:
    """Return whether `unpack` has written all files of an archive into its directory below `into`."""
    return (archive_directory(into, archive) / UNPACKED_FOLDER / archive.backup_id).exists()


def unpack(storage: BackupStorage, archive: BackupArchive, into: Path) -> list[str]:
    """Write the files of an archive; return the paths of those that are new or longer than before.

    The paths are relative to `archive_directory`, and sorted by file name.

    Raises:
        BackupError: The archive is missing or damaged, or its checksum differs from the one in the manifest.
    """
    directory = archive_directory(into, archive)
    temporary = directory / UNPACKING_FOLDER
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        names = _extract(storage, archive, temporary)
        changed = [name for name in names if _replace_if_longer(temporary / name, directory / name)]
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    (directory / UNPACKED_FOLDER).mkdir(exist_ok=True)
    (directory / UNPACKED_FOLDER / archive.backup_id).touch()
    return changed


def _extract(storage: BackupStorage, archive: BackupArchive, temporary: Path) -> list[str]:
    names = []
    with storage.open_archive(archive) as stream:
        hashed = _HashingReader(stream)
        source: Any = hashed
        try:
            with (
                zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True) as plain,
                tarfile.open(fileobj=plain, mode="r|") as tar,
            ):
                for member in tar:
                    name = _log_file_path(member, archive)
                    content = tar.extractfile(member) if name is not None else None
                    if name is not None and content is not None:
                        _write_file(content, temporary / name)
                        names.append(name)
        except (zstandard.ZstdError, tarfile.TarError, EOFError) as error:
            raise BackupError(
                f"the archive is damaged: {error}", backup=archive.backup_id, file=archive.path
            ) from error
        hashed.read_rest()
    if archive.checksum is not None and hashed.digest.hexdigest() != archive.checksum:
        raise BackupError(
            f"the archive's SHA-256 is {hashed.digest.hexdigest()}, the manifest says {archive.checksum}",
            backup=archive.backup_id,
            file=archive.path,
            advice="upload the archive again, or `tt backup verify` the storage",
        )
    return sorted(names, key=lambda name: PurePosixPath(name).name)


def _log_file_path(member: tarfile.TarInfo, archive: BackupArchive) -> str | None:
    """Return the relative path of a tar entry; None if it is not a log file."""
    if member.isdir():
        return None
    path = PurePosixPath(member.name)
    if not member.isreg() or path.is_absolute() or ".." in path.parts:
        raise BackupError(
            f"an unexpected entry: {member.name!r}", backup=archive.backup_id, file=archive.path
        )
    return str(path) if path.suffix in LOG_SUFFIXES else None


def _write_file(content: IO[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(content, file, CHUNK_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _replace_if_longer(new: Path, path: Path) -> bool:
    if path.exists() and path.stat().st_size >= new.stat().st_size:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    new.replace(path)
    return True
