"""`_schema`: every version of every space of every replicaset; a row is appended for each change.

The newest row of a (replicaset, space id) is the space's current definition. It has the exact `_space` and `_index`
tuples, since the next change of the space may be an operation on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deltalake import DeltaTable

from schemas.errors import TupleError
from schemas.space import Field, KeyPart, KeyParts, Space, space_of
from schemas.states import SpaceState, is_held, refusal_reason
from schemas.system_tuples import fields_of
from warehouse.delta.read import newest_of_each, query_rows
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
        # A release that did not look at secondary indexes stored no parts of them.
        found[name] = tuple(KeyPart(**one) for one in found.get(name, ()))
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
    """Return (replicaset id, space id) to the primary keys that the space has had since it was created.

    A row of an earlier release has only its current key, so the keys of all such rows of a space are combined.
    """
    opened = warehouse.opened(TABLE, version)
    keys = "keys" if any(field.name == "keys" for field in opened.schema().fields) else "NULL AS keys"
    query = f"SELECT replicaset_id, space_id, state, primary_key, {keys} FROM opened ORDER BY epoch"
    found: dict[tuple[int, int], frozenset[KeyParts]] = {}
    for row in query_rows(opened, query):
        name = (row["replicaset_id"], row["space_id"])
        if row["state"] == SpaceState.DROPPED:
            found[name] = frozenset()
        elif row["keys"] is not None:
            found[name] = frozenset(tuple(map(tuple, parts)) for parts in json.loads(row["keys"]))
        else:
            one = tuple(
                (part["field"], part["path"], part["collation"]) for part in json.loads(row["primary_key"])
            )
            found[name] = found.get(name, frozenset()) | {one} if one else frozenset()
    return found


def load(warehouse: Warehouse, version: int | None = None) -> list[StoredSpace]:
    """Return the definitions of all spaces that are not dropped, now or at a version of the table."""
    opened = warehouse.opened(TABLE, version)
    newest = newest_of_each(opened, ("replicaset_id", "space_id"))
    is_known = all(row.get("followed") is not None for row in newest if _is_refused_with_table(row))
    earlier = {} if is_known else _newest_present_rows(opened)
    return [
        StoredSpace(
            *(row["replicaset_id"], row["space_id"], row["state"], row["table_name"]),
            row["space_tuple"],
            dict(row["index_tuples"]),
            _applied_definition(row, earlier) if _is_refused_with_table(row) else None,
        )
        for row in newest
        if row["state"] != SpaceState.DROPPED
    ]


def _is_refused_with_table(row: Mapping[str, Any]) -> bool:
    return refusal_reason(row["state"]) is not None and row["table_name"] is not None


def _applied_definition(
    row: Mapping[str, Any], earlier: Mapping[tuple[int, int], Mapping[str, Any]]
) -> Space | None:
    """Return the definition by which the rows in the table of a refused space were written; None if it is not known.

    Earlier releases did not store it. For their rows, `earlier` has (replicaset id, space id) to the last row of
    `_schema` by which rows were applied.
    """
    if row.get("followed") is not None:
        return _space_from_json(row["followed"])
    one = earlier.get((row["replicaset_id"], row["space_id"]))
    if one is not None and one["table_name"] == row["table_name"]:
        return _decoded(one)
    return _decoded(row) if is_held(refusal_reason(row["state"]) or "") else None


def _newest_present_rows(opened: DeltaTable) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the newest `PRESENT` row, by (replicaset id, space id), of each space that was not dropped after it."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for row in query_rows(opened, "SELECT * FROM opened ORDER BY epoch"):
        name = (row["replicaset_id"], row["space_id"])
        if row["state"] == SpaceState.PRESENT:
            found[name] = row
        elif row["state"] == SpaceState.DROPPED:
            found.pop(name, None)
    return found


def _decoded(row: Mapping[str, Any]) -> Space | None:
    """Return the definition in a row; None if its tuples cannot be decoded."""
    primary = dict(row["index_tuples"]).get(0)
    try:
        index = None if primary is None else fields_of(primary, "a row of _index")
        return space_of(fields_of(row["space_tuple"], "a row of _space"), index)
    except TupleError:
        return None
