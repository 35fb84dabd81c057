"""`_schema`: every version of every space of every replicaset; a row is appended for each change.

The newest row of a (replicaset, space id) is the space's current definition. It has the exact `_space` and `_index`
tuples, since the next change of the space may be an operation on them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from schemas.space import Field, KeyPart, KeyParts, Space
from schemas.states import SpaceState, refusal_reason
from warehouse.delta.read import newest_of_each
from warehouse.warehouse import Warehouse

TABLE = "_schema"


@dataclass(frozen=True)
class SpaceVersion:
    """One version of a space."""

    replicaset_id: int
    space: Space
    table_name: str | None
    """The space's table; None if it has none."""
    state: str
    """present, dropped, or `refused: <reason>`: new rows of a refused space are in `_changelog` only."""
    since_replica_id: int | None
    since_lsn: int | None
    """Replica id and lsn of the row of the log that made this version; None if no row made it."""
    space_tuple: bytes
    """The tuple of `_space`."""
    index_tuples: Mapping[int, bytes]
    """Index id to the tuple of `_index`."""
    keys: frozenset[KeyParts] = frozenset()
    """The primary keys that the space has had since it was created, or since it last had none."""
    applied_definition: Space | None = None
    """Only of a refused space with a table: the definition by which the rows in the table were written."""


def rows_of(versions: Iterable[SpaceVersion], epoch: int) -> list[dict[str, Any]]:
    """Return a row of the table for each space: the last of its given versions."""
    return list({(v.replicaset_id, v.space.id): _row(v, epoch) for v in versions}.values())


def _row(version: SpaceVersion, epoch: int) -> dict[str, Any]:
    space = version.space
    return {
        "epoch": epoch,
        "replicaset_id": version.replicaset_id,
        "space_id": space.id,
        "name": space.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "table_name": version.table_name,
        "engine": space.engine,
        "format": json.dumps(
            [{"name": one.name, "type": one.type, "is_nullable": one.is_nullable} for one in space.fields]
        ),
        "primary_key": json.dumps([asdict(part) for part in space.primary_key]),
        "state": version.state,
        "since_lsn": version.since_lsn,
        "since_replica_id": version.since_replica_id,
        "space_tuple": version.space_tuple,
        "index_tuples": list(version.index_tuples.items()),
        "keys": json.dumps(sorted(version.keys, key=repr)),
        "followed": None
        if refusal_reason(version.state) is None
        else _space_to_json(version.applied_definition),
    }


def _space_to_json(space: Space | None) -> str:
    return json.dumps(None if space is None else asdict(space))


def _space_from_json(text: str) -> Space | None:
    found = json.loads(text)
    if found is None:
        return None
    found["fields"] = tuple(Field(**one) for one in found["fields"])
    for name in ("primary_key", "secondary_parts"):
        found[name] = tuple(KeyPart(**one) for one in found[name])
    return Space(**found)


@dataclass(frozen=True)
class StoredSpace:
    """The newest definition of a space in the table; the fields are those of `SpaceVersion`."""

    replicaset_id: int
    space_id: int
    state: str
    table_name: str | None
    space_tuple: bytes
    index_tuples: Mapping[int, bytes]
    applied_definition: Space | None = None


def load_keys(warehouse: Warehouse, version: int | None = None) -> dict[tuple[int, int], frozenset[KeyParts]]:
    """Return (replicaset id, space id) to the primary keys that the space has had since it was created."""
    newest = newest_of_each(warehouse.opened(TABLE, version), ("replicaset_id", "space_id"))
    return {(row["replicaset_id"], row["space_id"]): _keys_of(row) for row in newest}


def _keys_of(row: Mapping[str, Any]) -> frozenset[KeyParts]:
    if row["state"] == SpaceState.DROPPED:
        return frozenset()
    return frozenset(tuple(map(tuple, parts)) for parts in json.loads(row["keys"]))


def load(warehouse: Warehouse, version: int | None = None) -> list[StoredSpace]:
    """Return the definitions of all spaces that are not dropped, now or at a version of the table."""
    newest = newest_of_each(warehouse.opened(TABLE, version), ("replicaset_id", "space_id"))
    return [
        StoredSpace(
            *(row["replicaset_id"], row["space_id"], row["state"], row["table_name"]),
            row["space_tuple"],
            dict(row["index_tuples"]),
            _space_from_json(row["followed"]) if _is_refused_with_table(row) else None,
        )
        for row in newest
        if row["state"] != SpaceState.DROPPED
    ]


def _is_refused_with_table(row: Mapping[str, Any]) -> bool:
    return refusal_reason(row["state"]) is not None and row["table_name"] is not None
