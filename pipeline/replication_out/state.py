"""Reads what subscribers of the stream have: only the system rows of its snapshot and logs are needed for this.

The row `aggregator_epoch` of `_schema` has the epoch; it is the last row of the transaction with the epoch's data. So
after the process is killed at any time, the files show what was served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.fs

from pipeline.replication_out.bootstrap_rows import SUPER
from pipeline.replication_out.definitions import FIRST_USER_SPACE_ID, ServedSpace, space_from_rows
from pipeline.replication_out.rows import pack
from schemas.errors import SpoolError, TupleError
from schemas.iproto import SystemSpace
from schemas.system_tuples import fields_of
from sources.spool import state as spool_state
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import is_at_most, without_local
from sources.xlog.reader import reader

EPOCH_KEY = "aggregator_epoch"
"""The key in `_schema` of the row that has the epoch (`epoch_tuple`)."""

_FILE_SYSTEM = pyarrow.fs.LocalFileSystem()
_PRIMARY_KEY_FIELDS = {
    int(SystemSpace.SCHEMA): (0,),
    int(SystemSpace.SPACE): (0,),
    int(SystemSpace.INDEX): (0, 1),
    int(SystemSpace.USER): (0,),
    int(SystemSpace.PRIV): (1, 2, 3),
    int(SystemSpace.CLUSTER): (0,),
}
"""The system spaces that the writer changes, and the fields of their primary keys."""


def primary_key_fields(space_id: int, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the fields of the primary key of a system space's tuple (a space in `_PRIMARY_KEY_FIELDS`)."""
    return tuple(values[i] for i in _PRIMARY_KEY_FIELDS[space_id])


@dataclass(frozen=True)
class TableVersion:
    """A version of a table, with a digest of its files."""

    version: int
    digest: str
    """`files_digest` of its files. It differs if the same version number has other files after a rollback."""


@dataclass(frozen=True)
class EpochMark:
    """One epoch of the warehouse, as the stream identifies it."""

    epoch: int
    committed_at: int
    """Microseconds since 1970 UTC. It differs if the same epoch number is another epoch after a rollback."""
    tables: Mapping[str, TableVersion] = field(default_factory=dict)

    def as_list(self) -> list[Any]:
        """Return the values that `epoch_tuple` stores of the epoch."""
        tables = {name: [one.version, one.digest] for name, one in sorted(self.tables.items())}
        return [self.epoch, self.committed_at, tables]

    @staticmethod
    def from_list(value: Any) -> EpochMark:
        """Return the epoch mark that `as_list` made into values."""
        epoch, committed_at, tables = value
        return EpochMark(epoch, committed_at, {name: TableVersion(*one) for name, one in tables.items()})


@dataclass(frozen=True)
class EpochProgress:
    """The progress of writing an epoch that takes several transactions."""

    mark: EpochMark
    written_rows: int
    """The number of the epoch's changed rows that are already written."""


def epoch_tuple(mark: EpochMark, progress: EpochProgress | None = None) -> bytes:
    """Return the row of `_schema` with the epoch that subscribers have, and the progress of the next one."""
    rest = None if progress is None else [progress.written_rows, *progress.mark.as_list()]
    return pack([EPOCH_KEY, mark.epoch, mark.committed_at, mark.as_list()[2], rest])


@dataclass
class ServedRows:
    """The rows of system spaces that subscribers have: `_schema`, `_space`, `_index`, `_user`, `_priv`, `_cluster`."""

    rows: dict[int, dict[tuple[Any, ...], bytes]] = field(
        default_factory=lambda: {space: {} for space in _PRIMARY_KEY_FIELDS}
    )
    """Tuples of system spaces, by space id and primary key."""

    def put(self, space_id: int, tuple_: bytes) -> None:
        """Insert or replace a tuple of a system space."""
        values = fields_of(tuple_, "a system row")
        self.rows[space_id][primary_key_fields(space_id, values)] = tuple_

    def remove(self, space_id: int, key: bytes) -> None:
        """Delete a tuple of a system space, if it exists."""
        self.rows[space_id].pop(tuple(fields_of(key, "a key")), None)

    @property
    def mark(self) -> EpochMark:
        """The epoch that subscribers have."""
        return EpochMark.from_list(self._epoch_row()[1:4])

    @property
    def progress(self) -> EpochProgress | None:
        """The progress of an epoch that takes several transactions and is not complete; None if there is none."""
        rest = self._epoch_row()[4]
        return None if rest is None else EpochProgress(EpochMark.from_list(rest[1:4]), rest[0])

    @property
    def replicaset_uuid(self) -> str:
        """The stream's replicaset uuid."""
        return str(fields_of(self.rows[SystemSpace.SCHEMA][("cluster",)], "a row of _schema")[1])

    @property
    def cluster(self) -> dict[int, str]:
        """Instance uuids by global id."""
        found = (fields_of(row, "a row of _cluster") for row in self.rows[SystemSpace.CLUSTER].values())
        return {values[0]: values[1] for values in found}

    @property
    def spaces(self) -> dict[str, ServedSpace]:
        """The user spaces, by name; `indexes` is empty for a space without a primary index."""
        indexes: dict[int, dict[int, Any]] = {}
        for (space_id, number), row in self.rows[SystemSpace.INDEX].items():
            indexes.setdefault(space_id, {})[number] = fields_of(row, "a row of _index")
        found = [
            space_from_rows(fields_of(row, "a row of _space"), indexes.get(space_id, {}))
            for (space_id,), row in self.rows[SystemSpace.SPACE].items()
            if space_id >= FIRST_USER_SPACE_ID
        ]
        return {space.name: space for space in found}

    @property
    def users(self) -> dict[int, bytes]:
        """Rows of `_user`, without the users that every server has, by user id."""
        return {id_: row for (id_,), row in self.rows[SystemSpace.USER].items() if id_ > SUPER}

    def _epoch_row(self) -> Any:
        row = self.rows[SystemSpace.SCHEMA].get((EPOCH_KEY,))
        if row is None:
            raise TupleError("the stream names no epoch")
        return fields_of(row, "a row of _schema")


def read_served_rows(directory: Path, max_block_bytes: int = BLOCK_LIMIT) -> ServedRows | None:
    """Return the system rows that subscribers of a spool have, None if the spool is empty.

    Raises:
        SpoolError: The directory is not a spool that `relay --aggregated` has written.
    """
    snapshots, logs = spool_state.spool_files(directory, ".snap"), spool_state.spool_files(directory, ".xlog")
    if not snapshots:
        return None
    newest, served = snapshots[-1], ServedRows()
    start = without_local(newest.meta.vclock)
    after = [number for number, file in enumerate(logs) if is_at_most(without_local(file.meta.vclock), start)]
    spaces = frozenset(_PRIMARY_KEY_FIELDS)
    # After a kill, rows after the snapshot may be in the log that began before it: so rows are selected by lsn.
    later = Selection(space_ids=spaces, from_vclock=start)
    for file in (newest, *logs[after[-1] if after else 0 :]):
        selection = Selection(space_ids=spaces) if file is newest else later
        limits = reader.Limits(max_block_bytes=max_block_bytes)
        for batch in reader.read_rows(_FILE_SYSTEM, str(file.path), 0, None, selection, limits=limits):
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
