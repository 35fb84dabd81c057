"""Reads from the tables which instance has which replica id, and up to which vclock each source was read; no Spark.

If the `_cluster` of a source differs from that of its replicaset, the applier map has rows for that source, and the
source's vclock uses other replica ids than the tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from config.deployment import Config
from schemas.errors import ConfigurationError, WarehouseError
from sources.xlog.directory.offset import from_text
from udfs.remap.cluster_replace import OWN_REPLICASET_UUID, Cluster
from udfs.remap.replica_ids import replica_id_in_source
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.newest_epoch import EPOCHS, no_tables_error
from warehouse.delta.read import rows_of
from warehouse.system_tables import applier_map, cluster, vclock


@dataclass(frozen=True)
class InstanceIdReader:
    """Reads the ids of instances and replicasets from the tables of a warehouse, each table on first use."""

    location: WarehouseLocation

    def _open_table(self, table: str) -> DeltaTable:
        try:
            opened = self.location.open(table)
        except DeltaError as error:
            raise WarehouseError(f"the table cannot be read: {error}", table=table) from error
        if opened is None:
            raise no_tables_error(self.location.root)
        return opened

    def _rows_of_table(self, table: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        opened = self._open_table(table)
        try:
            return rows_of(opened, columns)
        except DeltaError as error:
            raise WarehouseError(f"the table cannot be read: {error}", table=table) from error

    @cached_property
    def cluster(self) -> Cluster:
        """All instances and replicasets, with their ids, from the table `_cluster`."""
        rows = self._rows_of_table(cluster.TABLE, (*cluster.COLUMNS, "expelled_at"))
        properties = self._open_table(cluster.TABLE).metadata().configuration
        allocation = cluster.checked_allocation(properties.get(cluster.ALLOCATION_PROPERTY))
        members = ({**row, "expelled": row["expelled_at"] is not None} for row in rows)
        return cluster.cluster_of(
            ({name: row[name] for name in (*cluster.COLUMNS, "expelled")} for row in members),
            allocation or "counter",
        )

    @cached_property
    def applier_maps(self) -> Mapping[int, tuple[applier_map.MapRow, ...]]:
        """By replicaset id, the rows of the replicaset's applier map."""
        rows = self._rows_of_table(applier_map.TABLE, ())
        return applier_map.rows_by_replicaset(rows, self.cluster)

    @cached_property
    def newest_epoch(self) -> Mapping[str, object]:
        """`epoch` and `end_offset` of the newest row of `_epochs`; empty before the first batch."""
        rows = self._rows_of_table(EPOCHS, ("epoch", "end_offset"))
        return max(rows, key=lambda row: int(row["epoch"]), default={})

    @cached_property
    def _vclock_rows(self) -> list[dict[str, Any]]:
        last = int(str(self.newest_epoch.get("epoch", -1)))
        rows = self._rows_of_table(vclock.TABLE, ("replicaset_id", "global_id", "local_id", "lsn", "epoch"))
        return [row for row in rows if row["epoch"] <= last]

    @cached_property
    def all_vclock_components(self) -> list[vclock.VclockComponent]:
        """The components of all settled vclocks, those of earlier epochs, too, as far as the table keeps them."""
        return [vclock.VclockComponent(**row) for row in self._vclock_rows]

    @cached_property
    def vclock_components(self) -> list[vclock.VclockComponent]:
        """The components (replicaset, replica id, lsn) of all settled vclocks at the newest epoch."""
        return vclock.newest_components(self._vclock_rows)

    @property
    def leaders(self) -> dict[str, str]:
        """The leader (the source that is read now) of each replicaset, by replicaset uuid."""
        offset = self.newest_epoch.get("end_offset")
        return {} if offset is None else {u: entry.leader for u, entry in from_text(str(offset)).items()}

    def replicaset_of(self, config: Config, source: str) -> str:
        """Return the uuid of a source's replicaset, from the tables or the configuration."""
        read = self.replicaset_of_read_source(source)
        known = [] if read is None else [read]
        configured = [one.replicaset for one in config.sources if one.name == source and one.replicaset]
        for uuid in (*known, *configured):
            return uuid
        names = sorted({*self.leaders.values(), *(one.name for one in config.sources)})
        raise ConfigurationError(
            f"no table has the replicaset of the source {source!r}",
            advice=f"name one that was read ({', '.join(names)}), or give it the key replicaset",
        )

    def replicaset_of_read_source(self, source: str) -> str | None:
        """Return the uuid of the replicaset whose rows were read from a source; None if no row was read from it."""
        uuids = {id_: uuid for uuid, id_ in self.cluster.replicaset_ids.items()}
        led = [uuid for uuid, leader in self.leaders.items() if leader == source]
        own = [
            uuids[id_] for id_, found in self.applier_maps.items() if any(e.source == source for e in found)
        ]
        return next(iter([*led, *own]), None)

    def applier_map_rows(self, replicaset_uuid: str) -> tuple[applier_map.MapRow, ...]:
        """Return the rows of a replicaset's applier map; empty if the tables do not have the replicaset."""
        return self.applier_maps.get(self.cluster.replicaset_ids.get(replicaset_uuid, -1), ())


def vclock_in_source(reader: InstanceIdReader, replicaset_uuid: str, source: str) -> dict[int, int]:
    """Return the vclock up to which a replicaset was read, in the replica ids of one of its sources.

    If a replica id was given to another instance, the new owner's lsns continue after the last lsn of the previous one.
    So the component of an id is the highest lsn of all its owners. Component 0 is left out: it counts an instance's
    changes of local spaces, and is never sent to a master.
    """
    ids = applier_map.id_translations_by_source(reader.applier_map_rows(replicaset_uuid)).get(source, {})
    number = reader.cluster.replicaset_ids.get(replicaset_uuid)
    found: dict[int, int] = {}
    for one in reader.vclock_components:
        if one.replicaset_id == number and one.local_id:
            own = replica_id_in_source(ids, one.local_id)
            if own is not None:
                found[own] = max(found.get(own, 0), one.lsn)
    return dict(sorted(found.items()))


def instances_in_source(reader: InstanceIdReader, replicaset_uuid: str, source: str | None) -> dict[int, str]:
    """Return the uuids of a replicaset's registered instances, by their replica ids in a source.

    If `source` is None, the ids are those that the tables use: they are from the `_cluster` that was read first.
    """
    applier_map_rows = reader.applier_map_rows(replicaset_uuid)
    ids = applier_map.id_translations_by_source(applier_map_rows).get(source or "", {})
    known = applier_map.instance_by_replica_id(applier_map_rows, reader.cluster, replicaset_uuid)
    own_ids = {meant: replica_id_in_source(ids, meant) for meant in sorted(known)}
    return {own: known[meant] for meant, own in own_ids.items() if own is not None}


def json_document(reader: InstanceIdReader) -> dict[str, Any]:
    """Return the ids of all instances and all applier maps as a JSON object, for `aggregator cluster show --json`."""
    own = [one.lsn for one in reader.vclock_components if one.local_id is None]
    members = sorted(reader.cluster.members.values(), key=lambda member: member.global_id or 0)
    kept = ("global_id", "uuid", "local_id", "replicaset_uuid", "lsn", "expelled", "is_daemon")
    uuids = {number: uuid for uuid, number in reader.cluster.replicaset_ids.items()}
    map_rows = [entry for number in sorted(reader.applier_maps) for entry in reader.applier_maps[number]]
    return {
        "allocation": reader.cluster.allocation,
        "own_lsn": max(own, default=0),
        "instances": [{name: getattr(member, name) for name in kept} for member in members],
        "maps": [
            {
                "replicaset_uuid": uuids.get(entry.replicaset_id),
                "source": entry.source,
                "local_id": entry.local_id,
                "global_id": entry.global_id,
                "since_lsn": entry.since_lsn,
            }
            for entry in map_rows
        ],
    }


def text_lines(reader: InstanceIdReader) -> Iterator[str]:
    """Yield the lines of `aggregator cluster show`: each instance, then the owners of each replica id over time."""
    own = [one.lsn for one in reader.vclock_components if one.local_id is None]
    yield f"allocation {reader.cluster.allocation}, own lsn {max(own, default=0)}"
    yield "global_id  replica_id  lsn  instance"
    for member in sorted(reader.cluster.members.values(), key=lambda member: member.global_id or 0):
        where = (
            "the aggregator"
            if member.replicaset_uuid == OWN_REPLICASET_UUID
            else f"{'the daemon ' if member.is_daemon else ''}of {member.replicaset_uuid}"
        )
        gone = ", expelled" if member.expelled else ""
        replica_id = "-" if member.local_id is None else member.local_id
        yield f"{member.global_id or '-':>9}  {replica_id:>10}  {member.lsn:>3}  {member.uuid or '-'} {where}{gone}"
    for uuid, number in sorted(reader.cluster.replicaset_ids.items(), key=lambda pair: pair[1]):
        for entry in reader.applier_maps.get(number, ()):
            where = f" in the source {entry.source}" if entry.source is not None else ""
            yield f"{uuid}{where}: {entry.local_id} is {entry.global_id} from lsn {entry.since_lsn}"


def instance_id_reader(config: Config) -> InstanceIdReader:
    """Return the reader for the tables of a deployment."""
    return InstanceIdReader(location_of(config.warehouse, config.database))
