"""What followers of the stream have: found from the system rows of its own snapshot and logs, and nothing else.

The row `aggregator_epoch` of `_schema` names the epoch; it is the last row of the transaction that brings an epoch's
data. So after any kill the files say what was served. Not here: what comes next (`writer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.fs

from pipeline.node.definitions import FIRST_ID, ServedSpace, space_from
from pipeline.node.rows import pack
from schemas.dictionary import SUPER
from schemas.errors import SpoolError, TupleError
from schemas.iproto import SystemSpace
from schemas.system_tuples import fields_of
from sources.spool import state as spool_state
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import not_beyond, shared
from sources.xlog.reader import reader

KEY = "aggregator_epoch"
"""The key in `_schema`; its value is the number of the epoch."""

_FILES = pyarrow.fs.LocalFileSystem()
_KEY_FIELDS = {
    int(SystemSpace.SCHEMA): (0,),
    int(SystemSpace.SPACE): (0,),
    int(SystemSpace.INDEX): (0, 1),
    int(SystemSpace.USER): (0,),
    int(SystemSpace.PRIV): (1, 2, 3),
    int(SystemSpace.CLUSTER): (0,),
}
"""The system spaces that the writer changes, and the fields of their primary keys."""


def key_fields(space_id: int, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the primary key of a tuple of a system space that the writer changes."""
    return tuple(values[i] for i in _KEY_FIELDS[space_id])


@dataclass(frozen=True)
class TableVersion:
    """A table at a version.

    Parameters
    ----------
    version : int
    digest : str
        Of the names of its files: another history of the table has other files under the same version.

    """

    version: int
    digest: str


@dataclass(frozen=True)
class Mark:
    """One epoch of the warehouse, as the stream names it.

    Parameters
    ----------
    epoch : int
    committed_at : int
        Microseconds since 1970 UTC: another history has other times under the same number.
    tables : mapping of str to TableVersion
        Those that are served.

    """

    epoch: int
    committed_at: int
    tables: Mapping[str, TableVersion] = field(default_factory=dict)

    def packed(self) -> list[Any]:
        """Return it as the stream has it."""
        tables = {name: [one.version, one.digest] for name, one in sorted(self.tables.items())}
        return [self.epoch, self.committed_at, tables]

    @staticmethod
    def unpacked(value: Any) -> Mark:
        """Return the value that `packed` encoded."""
        epoch, committed_at, tables = value
        return Mark(epoch, committed_at, {name: TableVersion(*one) for name, one in tables.items()})


@dataclass(frozen=True)
class EpochProgress:
    """How far an epoch is that takes several transactions.

    Parameters
    ----------
    mark : Mark
        The epoch.
    rows : int
        So many of its rows are written.

    """

    mark: Mark
    rows: int


def epoch_tuple(mark: Mark, progress: EpochProgress | None = None) -> bytes:
    """Return the row of `_schema` that names what followers have, and what they are getting."""
    rest = None if progress is None else [progress.rows, *progress.mark.packed()]
    return pack([KEY, mark.epoch, mark.committed_at, mark.packed()[2], rest])


@dataclass
class Served:
    """The state of the stream: `apply` takes its system rows one after another."""

    rows: dict[int, dict[tuple[Any, ...], bytes]] = field(
        default_factory=lambda: {space: {} for space in _KEY_FIELDS}
    )
    """Tuples of system spaces, by primary key."""

    def put(self, space_id: int, tuple_: bytes) -> None:
        """Take a tuple of a system space."""
        values = fields_of(tuple_, "a system row")
        self.rows[space_id][key_fields(space_id, values)] = tuple_

    def remove(self, space_id: int, key: bytes) -> None:
        """Take the deletion of a tuple of a system space."""
        self.rows[space_id].pop(tuple(fields_of(key, "a key")), None)

    @property
    def mark(self) -> Mark:
        """The epoch whose data followers have."""
        return Mark.unpacked(self._epoch_row()[1:4])

    @property
    def progress(self) -> EpochProgress | None:
        """The epoch that they are getting, where it takes several transactions."""
        rest = self._epoch_row()[4]
        return None if rest is None else EpochProgress(Mark.unpacked(rest[1:4]), rest[0])

    @property
    def replicaset_uuid(self) -> str:
        """The uuid under which the stream is one replicaset."""
        return str(fields_of(self.rows[SystemSpace.SCHEMA][("cluster",)], "a row of _schema")[1])

    @property
    def cluster(self) -> dict[int, str]:
        """Instance uuids by global id."""
        found = (fields_of(row, "a row of _cluster") for row in self.rows[SystemSpace.CLUSTER].values())
        return {values[0]: values[1] for values in found}

    @property
    def spaces(self) -> dict[str, ServedSpace]:
        """The spaces of users, by name; one without a primary index has none."""
        indexes: dict[int, dict[int, Any]] = {}
        for (space_id, number), row in self.rows[SystemSpace.INDEX].items():
            indexes.setdefault(space_id, {})[number] = fields_of(row, "a row of _index")
        found = [
            space_from(fields_of(row, "a row of _space"), indexes.get(space_id, {}))
            for (space_id,), row in self.rows[SystemSpace.SPACE].items()
            if space_id >= FIRST_ID
        ]
        return {space.name: space for space in found}

    @property
    def users(self) -> dict[int, bytes]:
        """Rows of `_user` that are not of every server."""
        return {id_: row for (id_,), row in self.rows[SystemSpace.USER].items() if id_ > SUPER}

    def _epoch_row(self) -> Any:
        row = self.rows[SystemSpace.SCHEMA].get((KEY,))
        if row is None:
            raise TupleError("the stream names no epoch")
        return fields_of(row, "a row of _schema")


def read_served(directory: Path, limit: int = BLOCK_LIMIT) -> Served | None:
    """Return what followers of a spool have, None where it is empty.

    Parameters
    ----------
    directory : Path
        Opened by its writer before: no file ends in a torn block.
    limit : int
        The longest block that is read, in bytes.

    Raises
    ------
    SpoolError
        It is none of a node.

    """
    snapshots, logs = spool_state.spool_files(directory, ".snap"), spool_state.spool_files(directory, ".xlog")
    if not snapshots:
        return None
    newest, served = snapshots[-1], Served()
    start = shared(newest.meta.vclock)
    after = [number for number, file in enumerate(logs) if not_beyond(shared(file.meta.vclock), start)]
    spaces = frozenset(_KEY_FIELDS)
    # A writer that was killed may have gone on in the log before the snapshot: rows are taken by their lsn.
    later = Selection(spaces=spaces, from_vclock=start)
    for file in (newest, *logs[after[-1] if after else 0 :]):
        selection = Selection(spaces=spaces) if file is newest else later
        limits = reader.Limits(block=limit)
        for batch in reader.read_rows(_FILES, str(file.path), 0, None, selection, limits=limits):
            for row in batch.select(["type", "space_id", "tuple", "key"]).to_pylist():
                if row["type"] == "DELETE":
                    served.remove(row["space_id"], row["key"])
                elif row["type"] != "NOP":
                    served.put(row["space_id"], row["tuple"])
    try:
        served.mark  # noqa: B018
    except TupleError as error:
        raise SpoolError(
            f"the directory is the spool of a replicaset, not of a node: {error.reason}",
            spool=str(directory),
            advice="name an empty directory",
        ) from None
    return served
