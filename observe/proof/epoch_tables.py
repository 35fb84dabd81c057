"""Reads a replicaset's own versions from the tables at one epoch, without Spark.

A replicaset's own version of a key is the row of the space's table if the replicaset won it, else its newest row of
`_versions` (`schemas.tables`). All tables are read at the epoch's versions, so a running stream does not affect them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from schemas.errors import TupleError, WarehouseError
from schemas.iproto import SystemSpace
from schemas.names import table_of_exact_tuples
from schemas.states import VersionState
from udfs.keys.keys import KeyPlan, canonical_keys_by
from warehouse.newest_epoch import EPOCHS
from warehouse.place import Place
from warehouse.read import newest

_OWN_ROWS = """
    SELECT _key AS key, _tuple AS tuple FROM current WHERE _replicaset_id = {replicaset} AND _tuple IS NOT NULL
"""
_OLDER_VERSIONS = f"""
    SELECT key, tuple FROM (
        SELECT key, tuple, state, row_number() OVER (PARTITION BY key ORDER BY epoch DESC) AS place
        FROM versions WHERE space = '{{table}}' AND replicaset_id = {{replicaset}}
    ) newest
    LEFT ANTI JOIN (SELECT _key FROM current WHERE _replicaset_id = {{replicaset}}) won ON won._key = newest.key
    WHERE place = 1 AND state IN ('{VersionState.PRESENT}', '{VersionState.UNFIT}') AND tuple IS NOT NULL
"""
_CHANGES = """
    SELECT key, tuple, space_id FROM changelog
    WHERE epoch > {after} AND epoch <= {until} AND replicaset_id = {replicaset} AND space_id IN ({spaces})
"""

_DDL = (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.TRUNCATE)


@dataclass(frozen=True)
class EpochTables:
    """The tables at one epoch; made by `newest_tables`.

    Parameters
    ----------
    place : Place
    epoch : int
    vclocks : mapping of str to mapping of int to int
        By replicaset uuid: the vclock of its log in the tables.
    versions : mapping of str to int
        Table to Delta version.

    """

    place: Place = field(repr=False)
    epoch: int
    vclocks: Mapping[str, Mapping[int, int]]
    versions: Mapping[str, int] = field(repr=False)

    def own_versions(self, replicaset: int, table: str) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield canonical keys and tuples of all keys of a replicaset in a space, in any order.

        Parameters
        ----------
        replicaset : int
            Its replicaset id.
        table : str
            The space's table.

        """
        engine = QueryBuilder().register("current", self._opened(table_of_exact_tuples(self.versions, table)))
        names = {"replicaset": replicaset, "table": table}
        yield from _batches(engine, _OWN_ROWS.format(**names))
        if "_versions" in self.versions:
            engine = engine.register("versions", self._opened("_versions"))
            yield from _batches(engine, _OLDER_VERSIONS.format(**names))

    def own_tuples(self, replicaset: int, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the replicaset's tuple of each given key, None if it has none."""
        wanted, found = pa.array(keys, pa.binary()), dict[bytes, bytes]()
        for some, tuples in self.own_versions(replicaset, table):
            chosen = pc.is_in(some, wanted)
            found.update(zip(some.filter(chosen).to_pylist(), tuples.filter(chosen).to_pylist(), strict=True))
        return [found.get(key) for key in keys]

    def changed_keys(self, replicaset: int, space_id: int, plan: KeyPlan, after: int) -> set[bytes] | None:
        """Return the keys of a space that a replicaset changed in the epochs after a given one.

        None: some of these rows change more than single keys, so any key may have changed.
        """
        if self.epoch <= after or "_changelog" not in self.versions:
            return set()
        spaces = ", ".join(str(int(one)) for one in (space_id, *_DDL))
        query = _CHANGES.format(after=after, until=self.epoch, replicaset=replicaset, spaces=spaces)
        engine = QueryBuilder().register("changelog", self._opened("_changelog"))
        changed: set[bytes] = set()
        for batch in pa.table(engine.execute(query).read_all()).to_batches():
            if pc.any(pc.not_equal(batch["space_id"], space_id)).as_py():
                return None
            keys, tuples = batch["key"].cast(pa.binary()), batch["tuple"].cast(pa.binary())
            by_key = pc.is_valid(keys)
            data = pc.if_else(by_key, keys, tuples)
            found = canonical_keys_by(data, plan, 0, pc.invert(by_key)).field(0)
            if found.null_count:
                return None
            changed.update(found.to_pylist())
        return changed

    def _opened(self, table: str) -> DeltaTable:
        opened = self.place.open(table, self.versions.get(table))
        if opened is None:
            raise WarehouseError("a table of the newest epoch is missing", table=table)
        return opened


def newest_tables(place: Place) -> EpochTables:
    """Return the tables at the newest epoch.

    Raises
    ------
    WarehouseError
        No batch has been committed yet.

    """
    epochs = place.open(EPOCHS)
    last = None if epochs is None else newest(epochs, "epoch")
    if last is None:
        raise WarehouseError(
            "no batch is done yet", warehouse=place.root, advice="start `aggregator run` first"
        )
    vclocks = {
        uuid: {int(id_): int(lsn) for id_, lsn in vclock.items()}
        for uuid, vclock in json.loads(last["vclock"]).items()
    }
    versions = {str(name): int(version) for name, version in last["versions"]}
    return EpochTables(place, int(last["epoch"]), vclocks, versions)


def _batches(engine: QueryBuilder, query: str) -> Iterator[tuple[pa.Array, pa.Array]]:
    for batch in engine.execute(query):
        found = pa.record_batch(batch)
        if not found.num_rows:
            continue
        if found["key"].null_count:
            raise TupleError("a version has no key", advice="are the tables those that the aggregator wrote?")
        yield found["key"].cast(pa.binary()), found["tuple"].cast(pa.binary())
