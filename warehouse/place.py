"""A place that holds a warehouse, without Spark: its files through `pyarrow.fs`, its tables through delta-rs.

A place is the folder of one database, `<warehouse>/<database>.db`. Credentials are found where the two libraries look
for them (for S3: the environment, or the machine's role). Not here: what is in the tables.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from schemas.errors import WarehouseError

DATABASE = "aggregator"

SCHEMES = frozenset({"", "file", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hdfs"})
"""What both libraries open."""


def known(location: str) -> bool:
    """Whether a location can be a place: whether both libraries know its scheme."""
    return urlparse(location).scheme in SCHEMES


@dataclass(frozen=True)
class Place:
    """Where a warehouse lies.

    Parameters
    ----------
    root : str
        The folder of the database, a path or a URI.
    fs : pyarrow.fs.FileSystem
    path : str
        The same folder, as `fs` names it.

    """

    root: str
    fs: pafs.FileSystem = field(repr=False, compare=False)
    path: str = field(repr=False, compare=False)

    def uri(self, table: str) -> str:
        """Return where a table lies, as delta-rs takes it."""
        return f"{self.root}/{table}"

    def at(self, *names: str) -> str:
        """Return the path of a file or folder below, as `fs` takes it."""
        return "/".join((self.path, *names))

    def is_there(self) -> bool:
        """Whether the folder, or the one that it is to lie in, exists."""
        paths = [self.path, self.path.rpartition("/")[0]]
        return any(info.type == pafs.FileType.Directory for info in self.fs.get_file_info(paths))

    def open(self, table: str, version: int | None = None) -> DeltaTable | None:
        """Return a table, at a version or as it is now; None where there is none."""
        try:
            return DeltaTable(self.uri(table), version=version)
        except TableNotFoundError:
            return None

    def may_have(self, table: str, version: int) -> bool:
        """Whether a table may have a version, or later ones; False only if it has none of them.

        Looking for a file does not depend on the number of commits, while delta-rs lists a local folder of commits
        whole. Stores list from a name on, so there the answer is True: looking would cost as much as reading.
        """
        if not isinstance(self.fs, pafs.LocalFileSystem):
            return True
        log = Path(self.at(table, "_delta_log"))
        if (log / f"{version:020}.json").exists():
            return True
        try:
            # Commits are removed below a checkpoint only, so that it is behind them.
            return int(json.loads((log / "_last_checkpoint").read_bytes())["version"]) >= version
        except FileNotFoundError:
            return False
        except (OSError, ValueError, LookupError, TypeError):
            return True

    def has(self, table: str) -> bool:
        """Whether a Delta table lies here."""
        return bool(DeltaTable.is_deltatable(self.uri(table)))

    def tables(self) -> list[str]:
        """Return the names of the Delta tables that lie here, sorted; none where the place is not there."""
        found = self.fs.get_file_info(pafs.FileSelector(self.path, allow_not_found=True))
        folders = [info.base_name for info in found if info.type == pafs.FileType.Directory]
        logs = self.fs.get_file_info([self.at(name, "_delta_log") for name in folders])
        return sorted(n for n, log in zip(folders, logs, strict=True) if log.type == pafs.FileType.Directory)


def place_of(location: str, database: str = DATABASE) -> Place:
    """Return the place of a warehouse.

    Parameters
    ----------
    location : str
        The configuration's `warehouse`, or the folder of the database itself (`….db`); a path or a URI.
    database : str

    Raises
    ------
    WarehouseError
        Where no library opens such a location.

    """
    root = location.rstrip("/")
    if not root.endswith(".db"):
        root = f"{root}/{database}.db"
    scheme = urlparse(root).scheme
    if not known(root):
        raise WarehouseError(
            f"no warehouse can be opened at {scheme}:// without Spark",
            warehouse=root,
            advice=f"use one of {', '.join(sorted(SCHEMES - {''}))}, or a path",
        )
    if scheme in ("", "file"):
        path = str(Path(urlparse(root).path if scheme else root).resolve())
        return Place(path, pafs.LocalFileSystem(), path)
    try:
        fs, path = pafs.FileSystem.from_uri(root.replace("s3a://", "s3://", 1))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise WarehouseError(
            f"the warehouse cannot be opened: {error}", warehouse=root, advice="check its address"
        ) from error
    return Place(root, fs, path)
