"""Reads the versions of one replicaset from the tables at one epoch, without Spark.

If a replicaset won a key, its version of the key is the row of the space's table; else it is the newest row of
`_versions` with the key and the replicaset. Tables are read at the Delta versions of the epoch, so a running stream has
no effect.
"""

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
from udfs.keys.keys import KeyPlan, canonical_keys_with_plan
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import newest_epoch_row

_WON_ROWS_QUERY = """
    SELECT _key AS key, _tuple AS tuple FROM current WHERE _replicaset_id = {replicaset} AND _tuple IS NOT NULL
"""
_LOST_ROWS_QUERY = f"""
    SELECT key, tuple FROM (
        SELECT key, tuple, state, row_number() OVER (PARTITION BY key ORDER BY epoch DESC) AS row_index
        FROM versions WHERE space = '{{table}}' AND replicaset_id = {{replicaset}}
    ) newest
    LEFT ANTI JOIN (SELECT _key FROM current WHERE _replicaset_id = {{replicaset}}) won ON won._key = newest.key
    WHERE row_index = 1 AND state IN ('{VersionState.PRESENT}', '{VersionState.UNFIT}') AND tuple IS NOT NULL
"""
_CHANGES_QUERY = """
    SELECT key, tuple, space_id FROM changelog
    WHERE epoch > {after} AND epoch <= {until} AND replicaset_id = {replicaset} AND space_id IN ({spaces})
"""

_DDL_SPACES = (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.TRUNCATE)


@dataclass(frozen=True)
class EpochTables:
    """The tables at one epoch; `newest_tables` returns those of the newest epoch."""

    location: WarehouseLocation = field(repr=False)
    epoch: int
    vclock_by_replicaset: Mapping[str, Mapping[int, int]]
    """By replicaset uuid: the vclock up to which the tables have the rows of the replicaset's logs."""
    version_by_table: Mapping[str, int] = field(repr=False)

    def versions_of_replicaset(self, replicaset_id: int, table: str) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield (canonical keys, their tuples) of a replicaset in batches, for all keys of a space, in any order."""
        engine = QueryBuilder().register(
            "current", self._open_table(table_of_exact_tuples(self.version_by_table, table))
        )
        names = {"replicaset": replicaset_id, "table": table}
        yield from _keys_and_tuples(engine, _WON_ROWS_QUERY.format(**names))
        if "_versions" in self.version_by_table:
            engine = engine.register("versions", self._open_table("_versions"))
            yield from _keys_and_tuples(engine, _LOST_ROWS_QUERY.format(**names))

    def tuples_of_keys(self, replicaset_id: int, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the tuple that a replicaset has under each of some canonical keys; None for a key without a tuple."""
        requested, tuple_by_key = pa.array(keys, pa.binary()), dict[bytes, bytes]()
        for all_keys, tuples in self.versions_of_replicaset(replicaset_id, table):
            mask = pc.is_in(all_keys, requested)
            pairs = zip(all_keys.filter(mask).to_pylist(), tuples.filter(mask).to_pylist(), strict=True)
            tuple_by_key.update(pairs)
        return [tuple_by_key.get(key) for key in keys]

    def changed_keys(
        self, replicaset_id: int, space_id: int, key_plan: KeyPlan, after_epoch: int
    ) -> set[bytes] | None:
        """Return the canonical keys of a space that a replicaset changed in the epochs later than `after_epoch`.

        None if it is not known which keys changed: a space was truncated or altered, or a row's key cannot be computed.
        """
        if self.epoch <= after_epoch or "_changelog" not in self.version_by_table:
            return set()
        spaces = ", ".join(str(int(id_)) for id_ in (space_id, *_DDL_SPACES))
        query = _CHANGES_QUERY.format(
            after=after_epoch, until=self.epoch, replicaset=replicaset_id, spaces=spaces
        )
        engine = QueryBuilder().register("changelog", self._open_table("_changelog"))
        changed: set[bytes] = set()
        for batch in pa.table(engine.execute(query).read_all()).to_batches():
            if pc.any(pc.not_equal(batch["space_id"], space_id)).as_py():
                return None
            keys, tuples = batch["key"].cast(pa.binary()), batch["tuple"].cast(pa.binary())
            has_key = pc.is_valid(keys)
            data = pc.if_else(has_key, keys, tuples)
            canonical = canonical_keys_with_plan(data, key_plan, 0, pc.invert(has_key)).field(0)
            if canonical.null_count:
                return None
            changed.update(canonical.to_pylist())
        return changed

    def _open_table(self, table: str) -> DeltaTable:
        opened = self.location.open(table, self.version_by_table.get(table))
        if opened is None:
            raise WarehouseError("a table of the newest epoch is missing", table=table)
        return opened


def newest_tables(location: WarehouseLocation) -> EpochTables:
    """Return the tables at the newest epoch; raise WarehouseError if no batch has been committed yet."""
    last = newest_epoch_row(location)
    vclock_by_replicaset = {
        uuid: {int(id_): int(lsn) for id_, lsn in vclock.items()}
        for uuid, vclock in json.loads(last["vclock"]).items()
    }
    version_by_table = {str(name): int(version) for name, version in last["versions"]}
    return EpochTables(location, int(last["epoch"]), vclock_by_replicaset, version_by_table)


def _keys_and_tuples(engine: QueryBuilder, query: str) -> Iterator[tuple[pa.Array, pa.Array]]:
    for result in engine.execute(query):
        batch = pa.record_batch(result)
        if not batch.num_rows:
            continue
        if batch["key"].null_count:
            raise TupleError("a version has no key", advice="has another program changed the tables?")
        yield batch["key"].cast(pa.binary()), batch["tuple"].cast(pa.binary())
