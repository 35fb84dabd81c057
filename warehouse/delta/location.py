"""The location of a warehouse, and access to it without Spark: to files by `pyarrow.fs`, to tables by delta-rs.

A location is the folder of one database, `<warehouse>/<database>.db`. The two libraries find credentials by themselves
(for S3: in the environment, or from the machine's role). Not here: what is in the tables.
"""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from schemas.errors import WarehouseError
from schemas.names import unusable_in_path
from warehouse.delta.log_files import LOG_FOLDER, commit_path, last_checkpoint, missing_commit, names_in_log

DEFAULT_DATABASE = "aggregator"

SCHEMES = frozenset({"", "file", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hdfs"})
"""Schemes of URIs that both libraries open."""


def has_known_scheme(path: str) -> bool:
    """Whether both libraries know the scheme of a path or URI, so that it can be a location."""
    return urlparse(path).scheme in SCHEMES


@dataclass(frozen=True)
class WarehouseLocation:
    """The folder of a warehouse, and the file system to reach it."""

    root: str
    """The folder of the database, a path or a URI."""
    fs: pafs.FileSystem = field(repr=False, compare=False)
    path: str = field(repr=False, compare=False)
    """The same folder as `root`, as a path of `fs`."""

    @property
    def is_local(self) -> bool:
        """Whether the folder is on a local disk."""
        return isinstance(self.fs, pafs.LocalFileSystem)

    def uri(self, table: str) -> str:
        """Return the path or URI of a table, for delta-rs."""
        return f"{self.root}/{table}"

    def at(self, *names: str) -> str:
        """Return the path of a file or folder of the warehouse, as a path of `fs`: `at("_epochs", "_delta_log")`."""
        return "/".join((self.path, *names))

    def has_folder_or_parent(self) -> bool:
        """Whether the folder exists or can be created: its parent exists."""
        paths = [self.path, self.path.rpartition("/")[0]]
        return any(info.type == pafs.FileType.Directory for info in self.fs.get_file_info(paths))

    def open(self, table: str, version: int | None = None) -> DeltaTable | None:
        """Open a table at a version, or at its newest one; return None if there is no table.

        Raises:
            WarehouseError: A commit is missing in its log, before later ones.
            DeltaError: It cannot be opened for another reason, such as a version that maintenance has removed.
        """
        try:
            return DeltaTable(self.uri(table), version=version)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            lost = missing_commit(names_in_log(self.fs, self.at(table, LOG_FOLDER)))
            if lost is None:
                raise
            raise WarehouseError(
                f"the log of the table lacks its version {lost}, but has later ones",
                table=table,
                file=self.at(table, commit_path(lost)),
                advice="put the file back from a copy; docs/foreign-changes.md has the way without one",
            ) from error

    def has_version(self, table: str, version: int) -> bool:
        """Whether the log of a table has the commit of a version, or a checkpoint of it or of a later one."""
        if isinstance(self.fs, pafs.LocalFileSystem):
            return self.may_have(table, version)
        [found] = self.fs.get_file_info([self.at(table, commit_path(version))])
        if found.type == pafs.FileType.File:
            return True
        checkpoint = last_checkpoint(self.fs, self.at(table, LOG_FOLDER))
        return checkpoint is None or checkpoint >= version

    def may_have(self, table: str, version: int) -> bool:
        """Whether a table may have this version or a later one; if False, it has neither.

        On a local disk this looks for one file, since delta-rs would list all commits of the table. On an object store
        it returns True: a store lists only the newer commits, so opening the table costs no more than this check.
        """
        if not isinstance(self.fs, pafs.LocalFileSystem):
            return True
        # The commit's file may be gone, but only if a checkpoint of a later version exists.
        if Path(self.at(table, commit_path(version))).exists():
            return True
        checkpoint = last_checkpoint(self.fs, self.at(table, LOG_FOLDER))
        return checkpoint is None or checkpoint >= version

    def has(self, table: str) -> bool:
        """Whether this location has a Delta table of this name."""
        return bool(DeltaTable.is_deltatable(self.uri(table)))

    def tables(self) -> list[str]:
        """Return the names of this location's Delta tables, sorted; an empty list if the folder does not exist."""
        found = self.fs.get_file_info(pafs.FileSelector(self.path, allow_not_found=True))
        folders = [info.base_name for info in found if info.type == pafs.FileType.Directory]
        logs = self.fs.get_file_info([self.at(name, LOG_FOLDER) for name in folders])
        return sorted(n for n, log in zip(folders, logs, strict=True) if log.type == pafs.FileType.Directory)


def location_of(address: str, database: str = DEFAULT_DATABASE) -> WarehouseLocation:
    """Return the location of a warehouse.

    Args:
        address: The configuration's `warehouse`, or the folder of the database itself (`….db`); a path or a URI.

    Raises:
        WarehouseError: If the libraries cannot open the address.
    """
    root = address.rstrip("/")
    if not root.endswith(".db"):
        root = f"{root}/{database}.db"
    part = unusable_in_path(root)
    if part is not None:
        raise WarehouseError(
            f"no table can be in this folder: {part!r} is not allowed in its path",
            warehouse=root,
            advice="use another folder",
        )
    scheme = urlparse(root).scheme
    if not has_known_scheme(root):
        raise WarehouseError(
            f"no warehouse can be opened at {scheme}:// without Spark",
            warehouse=root,
            advice=f"use one of {', '.join(sorted(SCHEMES - {''}))}, or a path",
        )
    if scheme in ("", "file"):
        path = str(Path(urlparse(root).path if scheme else root).resolve())
        return WarehouseLocation(path, pafs.LocalFileSystem(), path)
    try:
        fs, path = pafs.FileSystem.from_uri(root.replace("s3a://", "s3://", 1))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise WarehouseError(
            f"the warehouse cannot be opened: {error}", warehouse=root, advice="check its address"
        ) from error
    return WarehouseLocation(root, fs, path)
