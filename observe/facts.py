"""The facts of a deployment's tables, each read once when it is first needed, by delta-rs, without Spark.

`status`, the status page of the stream, `doctor` and the report are made of them. A stream may run at the same time:
then some numbers may include the running batch, which is after the newest epoch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from observe.pending_work import open_requests
from schemas.names import is_space_table, replicaset_label, server_expectation
from schemas.states import VersionState, refusal_reason
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import newest_row, no_batch_error
from warehouse.delta.read import newest_of_each, query_rows, rows_of
from warehouse.system_tables.gaps import Gap, open_gaps
from warehouse.system_tables.table_differences import TableDifference, table_differences

_PENDING_QUERY = """
    SELECT replicaset_id, reason, count(*) AS n, min("timestamp") AS oldest FROM opened GROUP BY 1, 2 ORDER BY 1, 3 DESC
"""

# A key that was set aside is sound again when the table has a row of the replicaset under it, or when a later version
# of it is known. Rows that have no key cannot be compared with anything.
_SET_ASIDE_QUERY = f"""
    WITH aside AS (
      SELECT key, replicaset_id, max(epoch) AS epoch, max(reason) AS reason FROM quarantine
      WHERE space = $space AND misfits IS NULL AND key IS NOT NULL GROUP BY key, replicaset_id
    ), newest AS (
      SELECT v.key, v.replicaset_id, v.state, v.epoch,
             row_number() OVER (PARTITION BY v.key, v.replicaset_id ORDER BY v.epoch DESC) AS n
      FROM versions v JOIN aside a ON v.key = a.key AND v.replicaset_id = a.replicaset_id WHERE v.space = $space
    )
    SELECT count(*) AS n, max(a.reason) AS reason FROM aside a
    LEFT JOIN newest v ON v.key = a.key AND v.replicaset_id = a.replicaset_id AND v.n = 1
    LEFT JOIN space t ON t._key = a.key AND t._replicaset_id = a.replicaset_id
    WHERE t._key IS NULL AND (v.state IS NULL OR v.state = '{VersionState.UNFIT}'
                              OR (v.state = '{VersionState.PRESENT}' AND v.epoch <= a.epoch))
"""

_PROVEN_QUERY = """
    SELECT "table", expectation, max(CASE WHEN holds THEN validated_at END) AS proven_at
    FROM opened WHERE expectation LIKE '$pattern' GROUP BY "table", expectation
"""
_FAILED_PROOFS_QUERY = """
    SELECT "table", expectation, validated_at, unexpected, error
    FROM opened WHERE expectation LIKE '$pattern' AND NOT holds ORDER BY validated_at
"""


@dataclass(frozen=True)
class ServerProof:
    """What `_validations` knows of comparisons of one table with the servers of one replicaset."""

    table: str
    replicaset_uuid: str
    proven_at: datetime | None
    """When the newest comparison began that found all tuples equal; None if none did."""
    difference_count: int
    """Keys that differed in the newest comparison, if it found differences; else 0."""
    error: str | None
    """Why the table could not be compared last; None if it could."""


@dataclass(frozen=True)
class PendingGroup:
    """Rows of `_pending` of one replicaset that wait for the same reason."""

    replicaset_id: int
    reason: str
    row_count: int
    oldest: datetime | None


@dataclass(frozen=True)
class RefusedSpace:
    """A space whose rows go to no table."""

    name: str
    reason: str
    replicasets: tuple[str, ...]
    """Labels of the replicasets that it is refused in."""


@dataclass(frozen=True)
class FaultyRows:
    """Rows of one space that `_quarantine` has a reason for."""

    row_count: int
    reason: str


class DeploymentFacts:
    """The facts of the tables at one moment."""

    def __init__(self, location: WarehouseLocation) -> None:
        self.location = location
        self._opened: dict[str, DeltaTable | None] = {}

    def table(self, name: str) -> DeltaTable | None:
        """Return a table at its newest version; None if it does not exist."""
        if name not in self._opened:
            self._opened[name] = self.location.open(name)
        return self._opened[name]

    def _rows(self, name: str, query: str) -> list[dict[str, Any]]:
        opened = self.table(name)
        return [] if opened is None else query_rows(opened, query)

    @cached_property
    def epoch_row(self) -> Mapping[str, Any]:
        """The newest row of `_epochs`; WarehouseError if no batch has been committed yet, or `_epochs` is lost."""
        row = newest_row(self.location)
        if row is not None:
            return row
        for lost in table_differences(self.location, None):
            raise lost.error()
        raise no_batch_error(self.location.root)

    @property
    def committed_at(self) -> datetime:
        """When the newest epoch was committed, in UTC."""
        moment: datetime = self.epoch_row["committed_at"]
        return moment.astimezone(UTC)

    @cached_property
    def positions(self) -> Mapping[str, Mapping[str, Any]]:
        """By replicaset uuid: its entry of the stream's offset (`leader`, `file`, `position`, perhaps `instant`)."""
        offset = json.loads(self.epoch_row["end_offset"] or "null") or {}
        found: dict[str, dict[str, Any]] = offset.get("replicasets", {})
        return found

    @cached_property
    def vclocks(self) -> Mapping[str, Mapping[str, int]]:
        """By replicaset uuid: the vclock up to which its rows are settled."""
        found: dict[str, dict[str, int]] = json.loads(self.epoch_row["vclock"] or "{}")
        return found

    @cached_property
    def space_tables(self) -> tuple[str, ...]:
        """The tables of spaces that the newest epoch names."""
        return tuple(name for name, _ in self.epoch_row["versions"] if is_space_table(name))

    @cached_property
    def labels(self) -> Mapping[int, str]:
        """By replicaset id: how the replicaset is shown."""
        cluster = self.table("_cluster")
        rows = [] if cluster is None else rows_of(cluster, ["replicaset_id", "replicaset_uuid"])
        return {row["replicaset_id"]: self.label(str(row["replicaset_uuid"])) for row in rows}

    def label(self, uuid: str) -> str:
        """Return how a replicaset is shown: by the source that is read, and its uuid."""
        return replicaset_label(uuid, self.positions.get(uuid, {}).get("leader"))

    @cached_property
    def table_differences(self) -> tuple[TableDifference, ...]:
        """The tables that are not as the newest epoch names them: lost, older, or changed by somebody else."""
        return tuple(table_differences(self.location, self.epoch_row))

    @cached_property
    def open_gaps(self) -> tuple[Gap, ...]:
        """The gaps that are open: missing ranges of lsns, and divergences."""
        return open_gaps(self._rows("_gaps", "SELECT * FROM opened"))

    @cached_property
    def open_requests(self) -> tuple[str, ...]:
        """Requests to the writer that it has not carried out yet."""
        return open_requests(self.location)

    @cached_property
    def pending(self) -> tuple[PendingGroup, ...]:
        """The rows that wait, by replicaset and reason."""
        return tuple(
            PendingGroup(int(row["replicaset_id"]), str(row["reason"]), int(row["n"]), row["oldest"])
            for row in self._rows("_pending", _PENDING_QUERY)
        )

    @cached_property
    def first_committed_at(self) -> datetime:
        """When the oldest epoch that is kept was committed, in UTC."""
        rows = self._rows("_epochs", "SELECT min(committed_at) AS t FROM opened")
        moment: datetime = rows[0]["t"]
        return moment.astimezone(UTC)

    @cached_property
    def server_proofs(self) -> tuple[ServerProof, ...]:
        """The comparisons of tables with servers, for tables and replicasets that are followed now."""
        uuids = {server_expectation(uuid): uuid for uuid in self.positions}
        refused = {one.name for one in self.refused}
        queries = [
            query.replace("$pattern", server_expectation("%"))
            for query in (_PROVEN_QUERY, _FAILED_PROOFS_QUERY)
        ]
        proven, failed = (self._rows("_validations", query) for query in queries)
        differences: dict[tuple[str, str], Mapping[str, Any]] = {}
        errors: dict[tuple[str, str], Mapping[str, Any]] = {}
        for row in failed:
            by_key = differences if row["unexpected"] else errors
            by_key[row["table"], row["expectation"]] = row
        found = []
        for row in proven:
            table, uuid, proven_at = str(row["table"]), uuids.get(row["expectation"]), row["proven_at"]
            if uuid is None or table not in self.space_tables or table in refused:
                continue
            difference, error = (
                one
                if (one := rows.get((table, row["expectation"]))) is not None
                and (proven_at is None or one["validated_at"] >= proven_at)
                else {}
                for rows in (differences, errors)
            )
            count = int(difference.get("unexpected", 0))
            found.append(ServerProof(table, uuid, proven_at, count, error.get("error")))
        return tuple(sorted(found, key=lambda one: (one.table, one.replicaset_uuid)))

    @property
    def proven_at(self) -> datetime | None:
        """When the oldest of the tables' newest proofs began: since then all compared tables were found equal.

        None if a compared table was not equal yet, or a replicaset has no compared table.
        """
        moments = [one.proven_at for one in self.server_proofs if one.proven_at is not None]
        seen = {one.replicaset_uuid for one in self.server_proofs}
        is_complete = len(moments) == len(self.server_proofs) and self.positions.keys() <= seen
        return min(moments).astimezone(UTC) if is_complete and moments else None

    @property
    def unproven_since(self) -> datetime:
        """When the age of the proof began: `proven_at`, or without it when the oldest kept epoch was committed."""
        return self.proven_at or self.first_committed_at

    @cached_property
    def conflict_count(self) -> int:
        """Number of rows of `_conflicts`."""
        return sum(int(row["n"]) for row in self._rows("_conflicts", "SELECT count(*) AS n FROM opened"))

    @cached_property
    def refused(self) -> tuple[RefusedSpace, ...]:
        """The spaces that are refused now."""
        schema = self.table("_schema")
        found: dict[tuple[str, str], list[str]] = {}
        for row in [] if schema is None else newest_of_each(schema, ["replicaset_id", "space_id"]):
            reason = refusal_reason(row["state"])
            if reason is not None:
                label = self.labels.get(row["replicaset_id"], str(row["replicaset_id"]))
                found.setdefault((row["name"], reason), []).append(label)
        return tuple(
            RefusedSpace(name, reason, tuple(sorted(found[name, reason]))) for name, reason in sorted(found)
        )

    @cached_property
    def _quarantined_spaces(self) -> Mapping[str, Mapping[str, Any]]:
        """By space: its numbers of rows of `_quarantine`, with and without a key, and with misfits, and reasons."""
        rows = self._rows(
            "_quarantine",
            "SELECT space, sum(CASE WHEN misfits IS NULL AND key IS NULL THEN 1 ELSE 0 END) AS keyless, "
            "sum(CASE WHEN misfits IS NULL AND key IS NOT NULL THEN 1 ELSE 0 END) AS keyed, "
            "sum(CASE WHEN misfits IS NOT NULL THEN 1 ELSE 0 END) AS misfits, "
            "max(CASE WHEN misfits IS NULL THEN reason END) AS aside_reason, "
            "max(CASE WHEN misfits IS NOT NULL THEN reason END) AS misfit_reason FROM opened GROUP BY space",
        )
        return {str(row["space"]): row for row in rows}

    @cached_property
    def set_aside(self) -> Mapping[str, FaultyRows]:
        """By space: the keys that are in no table now, since a row of theirs was set aside, and rows without a key."""
        found = {}
        for space, counts in self._quarantined_spaces.items():
            keyed = self._set_aside_keys(space) if counts["keyed"] else 0
            if keyed or counts["keyless"]:
                found[space] = FaultyRows(int(keyed + counts["keyless"]), str(counts["aside_reason"]))
        return found

    def _set_aside_keys(self, space: str) -> int:
        tables = {"quarantine": self.table("_quarantine"), "versions": self.table("_versions")}
        own = self.table(space) if space in self.space_tables else None
        query = _SET_ASIDE_QUERY.replace("$space", "'" + space.replace("'", "''") + "'")
        if own is None:
            query = query.replace(
                "LEFT JOIN space t",
                "LEFT JOIN (SELECT key AS _key, replicaset_id AS _replicaset_id "
                "FROM quarantine WHERE false) t",
            )
        builder = QueryBuilder()
        for name, table in {**tables, "space": own}.items():
            if table is not None:
                builder = builder.register(name, table)
        return int(builder.execute(query).read_all()["n"][0].as_py())

    @cached_property
    def misfits(self) -> Mapping[str, FaultyRows]:
        """By table: its rows with a column that is NULL now since it cannot hold their value."""
        found = {}
        for space, counts in self._quarantined_spaces.items():
            table = self.table(space) if counts["misfits"] and space in self.space_tables else None
            if table is None or "_misfits" not in {field.name for field in table.schema().fields}:
                continue
            rows = query_rows(table, "SELECT count(*) AS n FROM opened WHERE _misfits IS NOT NULL")
            if rows[0]["n"]:
                found[space] = FaultyRows(int(rows[0]["n"]), str(counts["misfit_reason"]))
        return found


FACT_ERRORS = (DeltaError, OSError)
"""Exceptions that mean that a table cannot be read."""
