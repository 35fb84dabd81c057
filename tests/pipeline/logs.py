"""Makes rows of small logs in memory: transactions with real MessagePack in their bodies, and lsns as in Tarantool."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import pyarrow as pa

from pipeline.plan.rows.position import LogPosition
from pipeline.plan.rows.summary import ControlRow
from pipeline.state import SpaceDefinition
from schemas.iproto import BodyKey, SystemSpace
from schemas.xrow import XROW_ARROW

A1, A2, A3 = (f"a0000000-0000-4000-8000-00000000000{i}" for i in (1, 2, 3))
A, B = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"
B1 = "b0000000-0000-4000-8000-000000000001"

Row = dict[str, Any]
ID_PARTS = [{"field": 0, "type": "unsigned"}]
FIELDS = [{"name": "id", "type": "unsigned"}, {"name": "value", "type": "string", "is_nullable": True}]


def pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


@dataclass(frozen=True)
class Transaction:
    """Rows of one instance; `lsn` is that of the first row, None if it follows the instance's last one."""

    replica_id: int
    rows: tuple[Row, ...]
    lsn: int | None = None


def txn(replica_id: int, *rows: Row, lsn: int | None = None) -> Transaction:
    return Transaction(replica_id, rows, lsn)


def change(kind: str, space_id: int, *, key: Any = None, tuple_: Any = None, ops: Any = None) -> Row:
    row: Row = {"type": kind, "space_id": space_id}
    for name, value in (("key", key), ("tuple", tuple_), ("operations", ops)):
        row[name] = None if value is None else pack(value)
    return row


def put(space_id: int = 512, *fields: Any) -> Row:
    return change("REPLACE", space_id, tuple_=list(fields) or [1])


def synchronous_row(row: Row) -> Row:
    return {**row, "wait_sync": True, "wait_ack": True}


def local_row(row: Row) -> Row:
    return {**row, "group_id": 1}


def settling_row(kind: str, owner: int, lsn: int, term: int | None = None) -> Row:
    body = {int(BodyKey.REPLICA_ID): owner, int(BodyKey.LSN): lsn}
    if term is not None:
        body[int(BodyKey.TERM)] = term
    return {"type": f"RAFT_{kind}", "body": pack(body)}


def space_tuple(
    space_id: int, name: str, fields: Sequence[Any] = FIELDS, engine: str = "memtx", **options: Any
) -> list[Any]:
    return [space_id, 1, name, engine, 0, options, list(fields)]


def index_tuple(space_id: int, parts: Sequence[Any] = ID_PARTS, index_id: int = 0) -> list[Any]:
    return [space_id, index_id, "pk", "tree", {"unique": True}, list(parts)]


def define(space_id: int, name: str, **options: Any) -> Row:
    return change("INSERT", SystemSpace.SPACE, tuple_=space_tuple(space_id, name, **options))


def index(space_id: int, parts: Sequence[Any] = ID_PARTS, index_id: int = 0) -> Row:
    return change("INSERT", SystemSpace.INDEX, tuple_=index_tuple(space_id, parts, index_id))


def drop_index(space_id: int, index_id: int = 0) -> Row:
    return change("DELETE", SystemSpace.INDEX, key=[space_id, index_id])


def drop(space_id: int) -> Row:
    return change("DELETE", SystemSpace.SPACE, key=[space_id])


def truncate(space_id: int) -> Row:
    return change("UPSERT", SystemSpace.TRUNCATE, tuple_=[space_id, 1], ops=[["+", 1, 1]])


def register(replica_id: int, uuid: str) -> Row:
    return change("INSERT", SystemSpace.CLUSTER, tuple_=[replica_id, uuid])


def expel(replica_id: int) -> Row:
    return change("DELETE", SystemSpace.CLUSTER, key=[replica_id])


def rows_of(transactions: Iterable[Transaction], lsns: Mapping[int, int] | None = None) -> list[Row]:
    """Return the rows of transactions with their positions and lsns; rows of local spaces count in component 0.

    `lsns` are the last ones before the rows, by replica id.
    """
    known = dict(lsns or {})
    rows: list[Row] = []
    for number, transaction in enumerate(transactions):
        origin = transaction.replica_id
        if transaction.lsn is not None:
            known[origin] = transaction.lsn - 1
        tsn = known.get(origin, 0) + 1
        for i, row in enumerate(transaction.rows):
            id_ = 0 if row.get("group_id") == 1 else origin
            known[id_] = known.get(id_, 0) + 1
            position = {"file": "x", "position": 100 + 50 * number, "row": i, "lsn": known[id_], "tsn": tsn}
            ends = i == len(transaction.rows) - 1
            flags = {"is_commit": ends, "wait_sync": False, "wait_ack": False, "index_base": 0}
            rows.append({**flags, **position, "replica_id": id_ or None, **row})
    return rows


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=XROW_ARROW)


def batch(*transactions: Transaction, lsns: Mapping[int, int] | None = None) -> pa.RecordBatch:
    return batch_of(rows_of(transactions, lsns))


def control_row(row: Row, position: int, segment: int = 0, replica_id: int | None = 1) -> ControlRow:
    content = {name: row.get(name) for name in ("space_id", "key", "tuple", "operations", "body")}
    base = row.get("index_base", 0)
    at = LogPosition(segment, position, 0)
    return ControlRow(at, row["type"], replica_id, position, position, index_base=base, **content)


def space_rows(
    space_id: int, name: str, parts: Sequence[Any] | None = ID_PARTS, **options: Any
) -> SpaceDefinition:
    indexes = {} if parts is None else {0: pack(index_tuple(space_id, parts))}
    return SpaceDefinition(pack(space_tuple(space_id, name, **options)), indexes)
