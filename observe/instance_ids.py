"""The owners of replica ids, and how far each source was read in its own ids: from the tables, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from config.deployment import Config
from schemas.errors import ConfigurationError
from sources.xlog.directory.offset import from_text
from udfs.remap.cluster_replace import AGGREGATOR, Cluster
from udfs.remap.replica_ids import replica_id_in_source
from warehouse import applier_map, cluster, vclock
from warehouse.newest_epoch import EPOCHS
from warehouse.read_only import ReadOnlyWarehouse


@dataclass(frozen=True)
class IdTables:
    """The tables about ids, each read on first use.

    Parameters
    ----------
    warehouse : ReadOnlyWarehouse

    """

    warehouse: ReadOnlyWarehouse

    @cached_property
    def cluster(self) -> Cluster:
        """`_cluster`."""
        rows = self.warehouse.rows(cluster.TABLE, (*cluster.COLUMNS, "expelled_at"))
        allocation = cluster.allocation_of(self.warehouse.property(cluster.TABLE, cluster.ALLOCATION))
        members = ({**row, "expelled": row["expelled_at"] is not None} for row in rows)
        return cluster.cluster_of(
            ({name: row[name] for name in (*cluster.COLUMNS, "expelled")} for row in members),
            allocation or "counter",
        )

    @cached_property
    def maps(self) -> Mapping[int, tuple[applier_map.MapRow, ...]]:
        """`_applier_map` by replicaset."""
        rows = self.warehouse.rows(applier_map.TABLE, applier_map.COLUMNS)
        return applier_map.by_replicaset(rows, self.cluster)

    @cached_property
    def epoch(self) -> Mapping[str, object]:
        """The newest row of `_epochs`; empty before the first batch."""
        rows = self.warehouse.rows(EPOCHS, ("epoch", "end_offset"))
        return max(rows, key=lambda row: int(row["epoch"]), default={})

    @cached_property
    def components(self) -> list[vclock.Component]:
        """`_vclock` as of the newest epoch; an unfinished batch is left out."""
        last = int(str(self.epoch.get("epoch", -1)))
        rows = self.warehouse.rows(vclock.TABLE, ("replicaset_id", "global_id", "local_id", "lsn", "epoch"))
        return vclock.newest(row for row in rows if row["epoch"] <= last)

    @property
    def leaders(self) -> dict[str, str]:
        """The current leader's source, by replicaset uuid."""
        offset = self.epoch.get("end_offset")
        return {} if offset is None else {u: entry.leader for u, entry in from_text(str(offset)).items()}

    def replicaset_of(self, config: Config, source: str) -> str:
        """Return the uuid of a source's replicaset, from the tables or the configuration.

        Raises
        ------
        ConfigurationError
            Neither has it.

        """
        known = self.read_of(source)
        configured = [one.replicaset for one in config.sources if one.name == source and one.replicaset]
        for uuid in (*known, *configured):
            return uuid
        names = sorted({*self.leaders.values(), *(one.name for one in config.sources)})
        raise ConfigurationError(
            f"no table has the replicaset of the source {source!r}",
            advice=f"name one that was read ({', '.join(names)}), or give it the key replicaset",
        )

    def read_of(self, source: str) -> list[str]:
        """Return the uuids of the replicasets whose rows were read from a source: none or one."""
        uuids = {id_: uuid for uuid, id_ in self.cluster.replicaset_ids.items()}
        led = [uuid for uuid, leader in self.leaders.items() if leader == source]
        own = [uuids[id_] for id_, found in self.maps.items() if any(e.source == source for e in found)]
        return [*led, *own][:1]

    def entries(self, replicaset_uuid: str) -> tuple[applier_map.MapRow, ...]:
        """Return a replicaset's applier map."""
        return self.maps.get(self.cluster.replicaset_ids.get(replicaset_uuid, -1), ())


def position(tables: IdTables, replicaset_uuid: str, source: str) -> dict[int, int]:
    """Return how far a replicaset was followed, as a vclock in the ids of one of its sources.

    If an id now belongs to another instance, it continues from the last lsn of the old one, so the highest lsn is used.
    Component 0 counts one instance's local changes and is never sent to a master.
    """
    ids = applier_map.ids_of(tables.entries(replicaset_uuid)).get(source, {})
    number = tables.cluster.replicaset_ids.get(replicaset_uuid)
    found: dict[int, int] = {}
    for one in tables.components:
        if one.replicaset_id == number and one.local_id:
            own = replica_id_in_source(ids, one.local_id)
            if own is not None:
                found[own] = max(found.get(own, 0), one.lsn)
    return dict(sorted(found.items()))


def instances(tables: IdTables, replicaset_uuid: str, source: str | None) -> dict[int, str]:
    """Return the currently registered instances of a replicaset, by their ids in a source."""
    entries = tables.entries(replicaset_uuid)
    ids = applier_map.ids_of(entries).get(source or "", {})
    known = applier_map.instances_of(entries, tables.cluster, replicaset_uuid)
    own_ids = {meant: replica_id_in_source(ids, meant) for meant in sorted(known)}
    return {own: known[meant] for meant, own in own_ids.items() if own is not None}


def described(tables: IdTables) -> dict[str, Any]:
    """Return what `show` prints, as a JSON object."""
    own = [one.lsn for one in tables.components if one.local_id is None]
    members = sorted(tables.cluster.members.values(), key=lambda member: member.global_id or 0)
    kept = ("global_id", "uuid", "local_id", "replicaset_uuid", "lsn", "expelled")
    uuids = {number: uuid for uuid, number in tables.cluster.replicaset_ids.items()}
    entries = [entry for number in sorted(tables.maps) for entry in tables.maps[number]]
    return {
        "allocation": tables.cluster.allocation,
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
            for entry in entries
        ],
    }


def shown(tables: IdTables) -> Iterator[str]:
    """Yield the lines of `show`: each instance, then the owners of each replicaset's replica ids over time."""
    own = [one.lsn for one in tables.components if one.local_id is None]
    yield f"allocation {tables.cluster.allocation}, own lsn {max(own, default=0)}"
    yield "global_id  replica_id  lsn  instance"
    for member in sorted(tables.cluster.members.values(), key=lambda member: member.global_id or 0):
        where = "the aggregator" if member.replicaset_uuid == AGGREGATOR else f"of {member.replicaset_uuid}"
        gone = ", expelled" if member.expelled else ""
        replica_id = "-" if member.local_id is None else member.local_id
        yield f"{member.global_id or '-':>9}  {replica_id:>10}  {member.lsn:>3}  {member.uuid or '-'} {where}{gone}"
    for uuid, number in sorted(tables.cluster.replicaset_ids.items(), key=lambda pair: pair[1]):
        for entry in tables.maps.get(number, ()):
            where = f" in the source {entry.source}" if entry.source is not None else ""
            yield f"{uuid}{where}: {entry.local_id} is {entry.global_id} from lsn {entry.since_lsn}"


def tables_of(config: Config) -> IdTables:
    """Return the tables about ids of a deployment."""
    return IdTables(ReadOnlyWarehouse(config.warehouse, config.database))
