"""Copies files between two locations, so that a file is visible in the target only when it is complete and checked.

A file is written under a temporary name, read back, and moved to its final name if the checksum is that of the source.
On HDFS and local disks a move is atomic; object stores show a file only when it is complete.
"""

import logging
from collections.abc import Iterator, Sequence
from uuid import uuid4

import google_crc32c
import pyarrow.fs as pafs

from schemas.errors import SyncError
from warehouse.delta.location import WarehouseLocation

log = logging.getLogger(__name__)

CHUNK_BYTES = 4 << 20
UNFINISHED_FOLDER = "_sync.unfinished"
"""The folder of files that are being copied, next to the tables' folders."""

DISCARDED_FILE = "_sync.discarded"
"""The file with the names of the tables that a discarded branch has created, next to the tables' folders."""


def log_step_done(step: str) -> None:
    """Log that a step is done. Tests patch this function to stop the process after a step."""
    log.debug("step %s is done", step)


def file_sizes(location: WarehouseLocation, *folder: str) -> dict[str, int]:
    """Return the files directly in a folder: name to size in bytes; empty if the folder does not exist."""
    selector = pafs.FileSelector(location.at(*folder), allow_not_found=True)
    found = location.fs.get_file_info(selector)
    return {info.base_name: info.size for info in found if info.type == pafs.FileType.File}


def checksum(location: WarehouseLocation, *path: str) -> int:
    """Return the CRC-32C of a file."""
    crc = 0
    for chunk in _chunks(location, location.at(*path)):
        crc = google_crc32c.extend(crc, chunk)
    return int(crc)


def have_same_content(first: WarehouseLocation, second: WarehouseLocation, *path: str) -> bool:
    """Whether the file at a path has the same checksum in both locations; both must have the file."""
    return checksum(first, *path) == checksum(second, *path)


def copy(source: WarehouseLocation, target: WarehouseLocation, *path: str) -> int:
    """Copy a file to the same path in the target, replacing a file there, and return its size in bytes.

    Raises:
        SyncError: If the source has no such file any more, or the copy has another checksum.
    """
    unfinished, final = target.at(UNFINISHED_FOLDER, uuid4().hex), target.at(*path)
    target.fs.create_dir(target.at(UNFINISHED_FOLDER), recursive=True)
    crc, size = 0, 0
    try:
        with target.fs.open_output_stream(unfinished) as stream:
            for chunk in _chunks(source, source.at(*path)):
                stream.write(chunk)
                crc, size = google_crc32c.extend(crc, chunk), size + len(chunk)
                log_step_done(f"write {'/'.join(path)}")
    except FileNotFoundError as error:
        raise SyncError(
            "a file vanished while it was copied",
            file=source.at(*path),
            advice="sync again: the source was vacuumed meanwhile",
        ) from error
    if checksum(target, UNFINISHED_FOLDER, unfinished.rpartition("/")[2]) != crc:
        raise SyncError(
            "a file does not read back as it was written", file=final, advice="check the store, sync again"
        )
    target.fs.create_dir(final.rpartition("/")[0], recursive=True)
    remove(target, *path)
    target.fs.move(unfinished, final)
    log_step_done(f"put {'/'.join(path)}")
    return size


def remove(location: WarehouseLocation, *path: str) -> None:
    """Remove a file, and the checksum file that Hadoop keeps of it, if they exist."""
    final = location.at(*path)
    for info in location.fs.get_file_info([hadoop_checksum_path(final), final]):
        if info.type == pafs.FileType.File:
            location.fs.delete_file(info.path)
            log_step_done(f"remove {'/'.join(path)}")


def hadoop_checksum_path(path: str) -> str:
    """Return the path of the checksum file that Hadoop keeps next to a local file."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


def remove_unfinished_files(location: WarehouseLocation) -> None:
    """Remove the partly copied files of a sync that was killed."""
    remove_folder(location, UNFINISHED_FOLDER)


def record_discarded_table_names(location: WarehouseLocation, tables: Sequence[str]) -> None:
    """Store the names of tables that only a discarded branch has, so that a sync after a crash removes them."""
    location.fs.create_dir(location.at(UNFINISHED_FOLDER), recursive=True)
    unfinished = location.at(UNFINISHED_FOLDER, uuid4().hex)
    with location.fs.open_output_stream(unfinished) as stream:
        stream.write("\n".join(tables).encode())
    remove(location, DISCARDED_FILE)
    location.fs.move(unfinished, location.at(DISCARDED_FILE))
    log_step_done("note")


def recorded_discarded_table_names(location: WarehouseLocation) -> set[str]:
    """Return the names of tables that only a discarded branch has, as `record_discarded_table_names` stored them."""
    if location.fs.get_file_info(location.at(DISCARDED_FILE)).type != pafs.FileType.File:
        return set()
    with location.fs.open_input_stream(location.at(DISCARDED_FILE)) as stream:
        return set(bytes(stream.read()).decode().splitlines())


def remove_folder(location: WarehouseLocation, *folder: str) -> None:
    """Remove a folder with everything in it, if it exists."""
    if location.fs.get_file_info(location.at(*folder)).type == pafs.FileType.Directory:
        location.fs.delete_dir(location.at(*folder))


def _chunks(location: WarehouseLocation, path: str) -> Iterator[bytes]:
    with location.fs.open_input_stream(path) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield bytes(chunk)
