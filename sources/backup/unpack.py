"""Writes the log files of an archive into a directory, as a stream: never a whole archive or file in memory.

An archive is a tar of log files, compressed by zstd. Its files are first written to a temporary folder; each is
renamed into place after the archive was read to its end and its checksum matches the manifest. So a reader of the
directory sees complete files only. The log at the border of two archives is in both: the longer one is kept.

Source: `cli/backup/archive/archive.go` of tarantool/tt 2.14. `sources.backup.chain` orders archives.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pyarrow.fs as pafs
import zstandard

from schemas.errors import BackupError
from sources.backup.manifest import DATA, MANIFESTS, BackupArchive, BackupManifest, read_manifest
from sources.xlog.reader.file_buffer import open_fs

SUFFIXES = frozenset({".snap", ".xlog", ".vylog", ".run", ".index"})
"""Suffixes of files that are written; others, such as a copy of the manifest, are of no use to a log reader."""

CHUNK = 1 << 20

ASIDE = ".unpacking"
DONE = ".unpacked"
"""Folders in a directory: files of archives that are still incomplete, and an empty file per complete archive."""


class BackupStorage:
    """A storage of backups.

    Parameters
    ----------
    location : str
        A local path, or any URI that `pyarrow.fs` opens: the folder that has `manifests` and `data`.

    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._fs, self._path = open_fs(location.rstrip("/"))

    def manifests(self) -> list[BackupManifest]:
        """Return all manifests.

        Raises
        ------
        BackupError
            There is no folder of manifests, or a file in it is not a manifest.

        """
        folder = f"{self._path}/{MANIFESTS}"
        if self._fs.get_file_info(folder).type != pafs.FileType.Directory:
            raise BackupError(
                "there is no folder `manifests`",
                storage=self.location,
                advice="name the folder that `tt backup upload` was given, with its prefix",
            )
        infos = self._fs.get_file_info(pafs.FileSelector(folder))
        found = []
        for info in sorted(infos, key=lambda one: str(one.base_name)):
            if info.type == pafs.FileType.File and info.base_name.endswith(".json"):
                with self._fs.open_input_stream(info.path) as stream:
                    found.append(read_manifest(stream.read(), info.base_name))
        return found

    def open_archive(self, archive: BackupArchive) -> Any:
        """Return the bytes of an archive as a stream.

        Raises
        ------
        BackupError
            The archive is missing.

        """
        for path in (f"{self._path}/{archive.path}", f"{self._path}/{DATA}/{archive.path}"):
            if self._fs.get_file_info(path).type == pafs.FileType.File:
                return self._fs.open_input_stream(path, compression=None)
        raise BackupError("the archive is missing", backup=archive.backup, file=archive.path)


class _Hashed:
    """Bytes of a stream, hashed as they are read."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = bytes(self._stream.read(size if size >= 0 else CHUNK))
        self.digest.update(data)
        return data

    def finish(self) -> None:
        """Read the remaining bytes."""
        while self.read(CHUNK):
            pass


def archive_directory(into: Path, archive: BackupArchive) -> Path:
    """Return the directory for the archive's instance: one source."""
    return into / archive.replicaset / archive.instance


def is_unpacked(into: Path, archive: BackupArchive) -> bool:
    """Whether all files of an archive have been written."""
    return (archive_directory(into, archive) / DONE / archive.backup).exists()


def unpack(storage: BackupStorage, archive: BackupArchive, into: Path) -> list[str]:
    """Write the files of an archive, and return the names of those that are new or longer than before.

    Parameters
    ----------
    storage : BackupStorage
    archive : BackupArchive
    into : Path
        Each instance gets its own directory below.

    Raises
    ------
    BackupError
        The archive is missing or damaged, or its checksum differs from the manifest's.

    """
    directory = archive_directory(into, archive)
    aside = directory / ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        names = _written_aside(storage, archive, aside)
        changed = [name for name in names if _moved(aside / name, directory / name)]
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    (directory / DONE).mkdir(exist_ok=True)
    (directory / DONE / archive.backup).touch()
    return changed


def _written_aside(storage: BackupStorage, archive: BackupArchive, aside: Path) -> list[str]:
    names = []
    with storage.open_archive(archive) as stream:
        hashed = _Hashed(stream)
        source: Any = hashed
        try:
            with (
                zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True) as plain,
                tarfile.open(fileobj=plain, mode="r|") as tar,
            ):
                for member in tar:
                    name = _file_of(member, archive)
                    content = tar.extractfile(member) if name is not None else None
                    if name is not None and content is not None:
                        _write(content, aside / name)
                        names.append(name)
        except (zstandard.ZstdError, tarfile.TarError, EOFError) as error:
            raise BackupError(
                f"the archive is damaged: {error}", backup=archive.backup, file=archive.path
            ) from error
        hashed.finish()
    if archive.checksum is not None and hashed.digest.hexdigest() != archive.checksum:
        raise BackupError(
            f"the archive's SHA-256 is {hashed.digest.hexdigest()}, the manifest says {archive.checksum}",
            backup=archive.backup,
            file=archive.path,
            advice="upload the archive again, or `tt backup verify` the storage",
        )
    return sorted(names, key=lambda name: PurePosixPath(name).name)


def _file_of(member: tarfile.TarInfo, archive: BackupArchive) -> str | None:
    """Return the file name for an entry; None if it is not a file of an instance."""
    if member.isdir():
        return None
    path = PurePosixPath(member.name)
    if not member.isreg() or path.is_absolute() or ".." in path.parts:
        raise BackupError(f"an unexpected entry: {member.name!r}", backup=archive.backup, file=archive.path)
    return str(path) if path.suffix in SUFFIXES else None


def _write(content: IO[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(content, file, CHUNK)
        file.flush()
        os.fsync(file.fileno())


def _moved(new: Path, path: Path) -> bool:
    """Rename a file into place, unless a file of the same or greater length exists there."""
    if path.exists() and path.stat().st_size >= new.stat().st_size:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    new.replace(path)
    return True
