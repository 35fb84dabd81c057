"""The earlier versions of a table: their data files, deletion vectors and log, and how to remove them all at once.

VACUUM keeps files for some days, and Delta keeps the entries of the log even longer, with the least and the greatest
values of each file. `remove_earlier_versions` leaves the newest version alone: a checkpoint, and the files that it
names. Nobody else may write to the table meanwhile, since files without a commit are removed, too.
"""

import contextlib
from collections.abc import Iterator
from urllib.parse import unquote

import pyarrow.fs as pafs
from deltalake import DeltaTable

from schemas.errors import WarehouseError
from warehouse.delta.deletion_vectors import INLINE
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.log_files import LOG_FOLDER, commit_path
from warehouse.delta.table_log import LogState, read_log

_LAST_CHECKPOINT = "_last_checkpoint"


def files_of_earlier_versions(location: WarehouseLocation, table: str) -> list[str]:
    """Return the paths of a table's data files and vectors that its newest version does not need."""
    live = _live_files(location, table)
    return [path for path in _stored_files(location, table) if path not in live]


def _live_files(location: WarehouseLocation, table: str) -> set[str]:
    state = read_log(location, table)
    paths = {unquote(path) for path in state.adds}
    vectors = {v.path for v in state.vectors().values() if v.storage != INLINE and v.path is not None}
    return {location.at(table, path) for path in paths | set(map(unquote, vectors))}


def _stored_files(location: WarehouseLocation, table: str) -> Iterator[str]:
    """Yield the paths of all files in a table's folder, without its log."""
    root = location.at(table)
    selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
    for info in location.fs.get_file_info(selector):
        if info.type == pafs.FileType.File and not info.path.startswith(f"{root}/{LOG_FOLDER}/"):
            yield info.path


def remove_earlier_versions(location: WarehouseLocation, table: str) -> int:
    """Remove what only earlier versions of a table need, and return the number of files; may be repeated.

    The checkpoint comes first, then the log, then the files: wherever the process ends, the newest version is whole.
    """
    opened = location.open(table)
    if opened is None:
        return 0
    newest = int(opened.version())
    old_files = files_of_earlier_versions(location, table)
    old_log = list(_log_before(location, table, newest))
    if not old_files and not old_log:
        return 0
    _write_checkpoint(location, table, opened, newest)
    for path in (*old_log, *old_files):
        with contextlib.suppress(FileNotFoundError):
            location.fs.delete_file(path)
    return len(old_files) + len(old_log)


def _write_checkpoint(location: WarehouseLocation, table: str, opened: DeltaTable, newest: int) -> None:
    opened.create_checkpoint()
    found: LogState = read_log(location, table, newest)
    if found.adds.keys() != read_log(location, table).adds.keys():
        raise WarehouseError(
            "somebody has written to the table", table=table, advice="stop that, then try again"
        )


def _log_before(location: WarehouseLocation, table: str, newest: int) -> Iterator[str]:
    """Yield the entries of the log before a version, and checksum files, which Spark writes and does not need."""
    selector = pafs.FileSelector(location.at(table, LOG_FOLDER), allow_not_found=True)
    kept = commit_path(newest).rpartition("/")[2]
    for info in location.fs.get_file_info(selector):
        if info.type != pafs.FileType.File or info.base_name == _LAST_CHECKPOINT:
            continue
        number = info.base_name.partition(".")[0]
        is_older = number.isdigit() and int(number) < newest
        is_derived = info.base_name.endswith(".crc") or ".compacted." in info.base_name
        if (is_older or is_derived) and info.base_name != kept:
            yield info.path
