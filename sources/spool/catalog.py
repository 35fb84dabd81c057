"""Tracks a spool that a relay serves: its files, its vclock, and which instance each replica id belongs to.

Each refresh reads the rows that were appended since the last one. A replica id may belong to one instance in a part of
the log and to another instance later; this instance is called the *owner* of the id. So the catalog stores each row of
`_cluster` that registers an instance under an id, as an `IdAssignment`. In a spool with `feed: own_peer`, rows of an id
may precede the row that registers the id, because they come from different peers (`first_id_owners`). The relay sends
the rows (`sources.relay.row_packets`).
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs

from schemas.errors import SpoolError, TupleError
from schemas.iproto import VCLOCK_MAX, SystemSpace
from schemas.system_tuples import field_at, fields_of, uuid_of
from sources.spool import state as spool_state
from sources.spool.state import REWOUND_PREFIX, SpoolFile
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.format.meta import Meta
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import are_equal, vclock_maximum, without_local
from sources.xlog.reader import reader
from sources.xlog.reader.fingerprint import checksum_before
from sources.xlog.stream.origins import IdAssignment, expelled_replica_id, first_owners, id_assignment_of

logger = logging.getLogger(__name__)

_LOCAL_FS = pyarrow.fs.LocalFileSystem()
_SYSTEM_SPACES = frozenset({int(SystemSpace.SCHEMA), int(SystemSpace.CLUSTER)})
_SCHEMA_UUID_KEYS = ("cluster", "replicaset_uuid")
_SCHEMA_NAME_KEY = "replicaset_name"
_ROW_COLUMNS = [
    *("type", "space_id", "tuple", "key", "operations", "index_base", "position", "replica_id", "lsn")
]


class SpoolCatalog:
    """The files, vclock and instances of one spool, as of the last `refresh`.

    Args:
        durable_end: Returns the path of the log that is being written, and how many of its bytes are certainly on the
            disk; only these are sent. Needed if the spool is the only copy of its rows, because a power failure may
            remove other bytes. Without it, or if it returns None, all bytes may be sent.
    """

    def __init__(
        self,
        directory: Path,
        limit: int = BLOCK_LIMIT,
        durable_end: Callable[[], tuple[Path, int] | None] | None = None,
    ) -> None:
        self.directory, self.limit = directory, limit
        self._durable_end = durable_end
        self.vclock: dict[int, int] = {}
        self.cluster: dict[int, str] = {}
        """{replica id: instance uuid} at the end of the spool; without ids of expelled instances."""
        self.replicaset_uuid: str | None = None
        self.replicaset_name: str | None = None
        """The cluster's name (3.0 and later); a subscriber with another name, or none, refuses the stream."""
        self.instance_uuid: str | None = None
        self.snapshots: list[SpoolFile] = []
        self.logs: list[SpoolFile] = []
        self._owners: dict[int, str] = {}
        self._first_owners: dict[int, str | None] = {}
        self._id_owners_at_start: dict[Path, Mapping[int, str]] = {}
        self._registrations: dict[Path, list[IdAssignment]] = {}
        self._read_ends: dict[str, int] = {}
        self._checksums: dict[str, tuple[int, int]] = {}
        """By log: the position up to which it was read, and the checksum of the bytes before it."""
        self._closed: set[str] = set()
        self._with_next_log: set[Path] = set()
        self._rewound_folders: frozenset[Path] | None = None
        self._metas: dict[Path, Meta] = {}
        self.replacements = 0
        """How often the spool was set aside, or a log was written again: rows sent before may be of another history."""

    @property
    def gc_vclock(self) -> dict[int, int]:
        """The vclock after which the spool has all rows; a subscriber with a lower vclock needs a snapshot.

        At this vclock begins the oldest log after the last gap. A log after a gap has equal VClock and PrevVClock
        headers.
        """
        for file in reversed(self.logs):
            if file.meta.prev_vclock is not None and are_equal(file.meta.prev_vclock, file.meta.vclock):
                return without_local(file.meta.vclock)
        if self.logs:
            return without_local(self.logs[0].meta.vclock)
        return without_local(self.snapshots[-1].meta.vclock) if self.snapshots else {}

    def sendable_end(self, path: Path) -> int:
        """Return the byte of a log up to which the catalog has read; only blocks that begin before it may be sent.

        Later blocks may have rows of ids whose registration is not known yet. For a closed log the result is one byte
        more, so that a reader finds the end marker.
        """
        return self._read_ends.get(path.name, 0) + (path.name in self._closed)

    def has_next_log(self, path: Path) -> bool:
        """Return whether the spool has a log after this one, which then no longer grows; as of the last refresh."""
        return path in self._with_next_log

    @property
    def last_id_owners(self) -> Mapping[int, str]:
        """{replica id: instance uuid} at the spool's end, also for expelled instances, whose rows may still come."""
        return self._owners | self.cluster

    @property
    def first_id_owners(self) -> Mapping[int, str]:
        """{replica id: instance uuid} for rows that precede the first row of `_cluster` with their id."""
        return {id_: uuid for id_, uuid in self._first_owners.items() if uuid is not None}

    def id_owners_at_start(self, path: Path) -> Mapping[int, str]:
        """Return {replica id: instance uuid} at the beginning of a log, also for instances expelled before."""
        return self._id_owners_at_start.get(path, {})

    def registrations(self, path: Path) -> Sequence[IdAssignment]:
        """Return the registrations of instances in a log, in log order; a refresh may append to the result."""
        return self._registrations.get(path, ())

    def refresh(self) -> None:
        """Read the rows that were appended since the last refresh; raise SpoolError if that fails."""
        known = {file.path.name for file in (*self.snapshots, *self.logs)}
        self._list_files()
        removed = known - {file.path.name for file in (*self.snapshots, *self.logs)}
        if self._is_spool_replaced(removed) or self._is_log_rewritten():
            self._forget_old_spool()
        # A snapshot sorts before the log of the same name, which continues from it.
        for file in sorted(
            (*self.snapshots, *self.logs), key=lambda file: (file.path.stem, file.path.suffix)
        ):
            self.instance_uuid = file.meta.instance_uuid
            read_end = self._read_ends.get(file.path.name)
            if file.path.suffix == ".snap":
                if read_end is None:
                    self.cluster = {}
                    self._read_system_rows(file, 0, None)
                    self._read_ends[file.path.name] = file.size
            elif read_end != file.size:
                self._id_owners_at_start.setdefault(file.path, dict(self._owners))
                self._read_appended_rows(file, read_end or file.meta.length)
        paths = {file.path for file in self.logs}
        self._with_next_log = {file.path for file in self.logs[:-1]}
        for by_path in (self._id_owners_at_start, self._registrations):
            for path in by_path.keys() - paths:
                del by_path[path]

    def _list_files(self) -> None:
        try:
            self.snapshots = spool_state.spool_files(self.directory, ".snap", self._metas)
            self.logs = spool_state.spool_files(self.directory, ".xlog", self._metas)
        except OSError as error:
            raise SpoolError(f"the spool cannot be read: {error}", spool=str(self.directory)) from error

    def _is_spool_replaced(self, removed_names: Collection[str]) -> bool:
        """Return whether the daemon has moved the old spool's files into a folder since the last refresh."""
        before, self._rewound_folders = (
            self._rewound_folders,
            frozenset(self.directory.glob(f"{REWOUND_PREFIX}*")),
        )
        if before is not None and self._rewound_folders - before:
            return True
        return any((folder / name).exists() for folder in self._rewound_folders for name in removed_names)

    def _is_log_rewritten(self) -> bool:
        """Return whether a log that has grown does not begin with what was read of it."""
        for file in self.logs:
            read_end = self._read_ends.get(file.path.name, 0)
            known = self._checksums.get(file.path.name)
            if known is None or read_end >= file.size or known[0] != read_end:
                continue
            if checksum_before(_LOCAL_FS, str(file.path), read_end) != known[1]:
                logger.warning("%s: written again: subscribers must subscribe again", file.path)
                return True
        return False

    def _forget_old_spool(self) -> None:
        """Forget all files of the old spool, and list those of the new one, which may have the same names."""
        self.replacements += 1
        self.vclock, self.cluster, self._owners, self._first_owners = {}, {}, {}, {}
        for known in (
            *(self._id_owners_at_start, self._registrations, self._read_ends, self._metas),
            self._checksums,
        ):
            known.clear()
        self._closed.clear()
        self._list_files()

    def _read_appended_rows(self, file: SpoolFile, begin: int) -> None:
        """Read a log from byte `begin` on, or from its start if the daemon has truncated it after a failed write."""
        if begin <= file.size:
            self._read_log(file, begin)
            return
        self._read_ends.pop(file.path.name, None)
        self._registrations.pop(file.path, None)
        self._closed.discard(file.path.name)
        self._read_log(file, file.meta.length)

    def _read_log(self, file: SpoolFile, begin: int) -> None:
        end, is_closed = reader.end_of_complete_blocks(_LOCAL_FS, str(file.path), begin, self.limit)
        open_log = None if self._durable_end is None else self._durable_end()
        if open_log is not None and open_log[0] == file.path:
            end, is_closed = min(end, open_log[1]), False
        if is_closed and (end > begin or file.path.name in self._read_ends):
            self._closed.add(file.path.name)  # a closed log without rows may be reopened
        if end <= begin:
            self.vclock = vclock_maximum(self.vclock, without_local(file.meta.vclock))
            return
        top, has_system_rows = np.zeros(VCLOCK_MAX, np.int64), False
        limits = reader.Limits(max_block_bytes=self.limit)
        for rows in reader.read_headers(
            _LOCAL_FS, str(file.path), begin, end, at_block_starts=True, limits=limits
        ):
            np.maximum.at(top, rows.replica_id, rows.lsn)
            has_system_rows = has_system_rows or bool(np.isin(rows.space_id, list(_SYSTEM_SPACES)).any())
        if has_system_rows:
            self._read_system_rows(file, begin, end)
        reached = {i: int(lsn) for i, lsn in enumerate(top) if i and lsn}
        self.vclock = vclock_maximum(vclock_maximum(self.vclock, without_local(file.meta.vclock)), reached)
        self._read_ends[file.path.name] = end
        self._checksums[file.path.name] = (end, checksum_before(_LOCAL_FS, str(file.path), end))

    def _read_system_rows(self, file: SpoolFile, begin: int, end: int | None) -> None:
        selection = Selection(space_ids=_SYSTEM_SPACES)
        batches = reader.read_rows(
            *(_LOCAL_FS, str(file.path), begin, end, selection),
            at_block_starts=end is not None,
            meta=file.meta,
            limits=reader.Limits(max_block_bytes=self.limit),
        )
        for batch in batches:
            for row in batch.select(_ROW_COLUMNS).to_pylist():
                if row["space_id"] == SystemSpace.CLUSTER:
                    self._apply_cluster_row(row, file)
                else:
                    self._apply_schema_row(row, file.path)
        if file.path.suffix == ".snap":
            self.vclock = vclock_maximum(self.vclock, without_local(file.meta.vclock))

    def _apply_schema_row(self, row: Mapping[str, Any], path: Path) -> None:
        try:
            fields = fields_of(row["tuple"], "a tuple") if row["tuple"] is not None else ()
            if fields and fields[0] in _SCHEMA_UUID_KEYS:
                self.replicaset_uuid = uuid_of(field_at(fields, 1, "the uuid"), "the replicaset's uuid")
            elif fields and fields[0] == _SCHEMA_NAME_KEY:
                name = field_at(fields, 1, "the name")
                self.replicaset_name = name if isinstance(name, str) else None
        except TupleError as error:
            # No server writes such a row; a subscriber gets it unchanged and decides by itself.
            logger.warning("%s: a row of _schema cannot be decoded: %s", path, error.reason)

    def _apply_cluster_row(self, row: Mapping[str, Any], file: SpoolFile) -> None:
        path, is_log = file.path, file.path.suffix == ".xlog"
        # A snapshot after a gap does not name the instances of rows before the gap.
        continues = is_log or are_equal(self.vclock, without_local(file.meta.vclock))
        for id_, uuid in first_owners([row]).items():
            if id_ not in self._owners:
                self._first_owners.setdefault(id_, uuid if continues else None)
        if row["type"] == "DELETE":
            self.cluster.pop(expelled_replica_id(row) or 0, None)
            return
        registered = id_assignment_of(row)
        if registered is None:
            logger.warning("%s: the row of _cluster at byte %d registers no instance", path, row["position"])
            return
        self.cluster[registered.replica_id] = self._owners[registered.replica_id] = registered.instance_uuid
        if is_log:
            self._registrations.setdefault(path, []).append(registered)
