"""Writes the system tables of a warehouse with any number of sources, with delta-rs and without Spark.

Each source is a replicaset of two instances with the replica ids 1 and 2. There are no tables of spaces, since the
report only needs their sizes.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql.pandas.types import to_arrow_schema

from schemas.tables import SYSTEM_TABLES

FIRST_TIME = datetime(2026, 11, 20, 12, tzinfo=UTC)
BATCHES = 6
OUTAGE = timedelta(hours=3)
"""For so long nothing is committed after half of the batches."""
EVIL = "<script>console.error('evil')</script>"
"""A name from a log that must not run as a script in the page."""


def uuid(kind: str, number: int) -> str:
    return f"{kind}0000000-0000-4000-8000-{number:012d}"


def begin_of(epoch: int) -> datetime:
    return FIRST_TIME + timedelta(minutes=10 * epoch) + (OUTAGE if epoch >= BATCHES // 2 else timedelta())


def write_warehouse(folder: Path, sources: int, database: str = "aggregator") -> None:
    """Write all system tables of a warehouse.

    Args:
        folder: The key `warehouse` of the configuration.
        sources: Number of sources.
    """
    rows = {name: list(_table_rows(name, sources)) for name in SYSTEM_TABLES if name != "_epochs"}
    root = folder / f"{database}.db"
    versions = {name: _write(root, name, table_rows) for name, table_rows in rows.items()}
    _write(root, "_epochs", [_epoch(number, versions) for number in range(BATCHES)])


def _write(root: Path, name: str, rows: list[dict[str, Any]]) -> int:
    schema = to_arrow_schema(SYSTEM_TABLES[name], timezone="UTC")
    write_deltalake(str(root / name), pa.Table.from_pylist(rows, schema=schema), mode="error")
    return 0


def _epoch(number: int, versions: dict[str, int]) -> dict[str, Any]:
    return {
        "epoch": number,
        "query_id": "query",
        "batch_id": number,
        "committed_at": begin_of(number) + timedelta(minutes=1),
        "rows": 10,
        "vclock": "{}",
        "writers": "{}",
        "versions": list(versions.items()),
    }


def _table_rows(table: str, sources: int) -> Any:
    for number in range(1, sources + 1):
        yield from globals().get(f"_of{table}", lambda _number: [])(number)


def _of_cluster(number: int) -> Any:
    for local_id in (1, 2):
        yield {
            "global_id": 2 * number + local_id,
            "uuid": uuid("a", 2 * number + local_id),
            "local_id": local_id,
            "replicaset_id": number,
            "replicaset_uuid": uuid("b", number),
            "lsn": number,
            "first_seen": FIRST_TIME,
        }


def _of_applier_map(number: int) -> Any:
    for local_id in (1, 2):
        yield {
            "replicaset_id": number,
            "local_id": local_id,
            "global_id": 2 * number + local_id,
            "since_lsn": 0,
        }


def _of_vclock(number: int) -> Any:
    for epoch in range(BATCHES):
        yield {
            "replicaset_id": number,
            "global_id": 2 * number + 1,
            "local_id": 1,
            "lsn": 10 * epoch,
            "epoch": epoch,
        }


def _of_changelog(number: int) -> Any:
    for epoch in range(BATCHES):
        for row in range(3):
            yield {
                "epoch": epoch,
                "replicaset_id": number,
                "source": f"source-{number}",
                "global_id": 2 * number + 1,
                "state": "committed",
                "space": "accounts",
                "file": "00000000000000000000.xlog",
                "lsn": 3 * epoch + row + 1,
                "timestamp": begin_of(epoch) + timedelta(seconds=row),
            }


def _of_conflicts(number: int) -> Any:
    if number == 1:
        return
    for hour in range(3):
        at = FIRST_TIME + timedelta(hours=hour)
        yield {
            "epoch": hour,
            "decided_at": at,
            "space": "accounts" if number % 2 else EVIL,
            "key": b"\x01",
            "kind": "key",
            "policy": "last_write_wins",
            "sequence": "timestamp",
            "winner_replicaset_id": number,
            "winner_timestamp": at,
            "winner_tuple": msgpack.packb([number, EVIL]),
            "loser_replicaset_id": 1,
            "loser_tuple": msgpack.packb([number, "lost"]),
        }


def _of_gaps(number: int) -> Any:
    gap = {
        "replicaset_id": number,
        "source": f"source-{number}",
        "local_id": 1,
        "first_lsn": 5,
        "last_lsn": 7,
    }
    yield {**gap, "epoch": 1, "found_at": FIRST_TIME, "kind": "missing", "state": "open", "file": "7.xlog"}
    if number > 1:
        yield {
            **gap,
            "epoch": 2,
            "found_at": FIRST_TIME,
            "kind": "missing",
            "state": "filled",
            "file": "7.xlog",
        }


def _of_quarantine(number: int) -> Any:
    for lsn in (8, 9):
        reason = f"field {EVIL} is no unsigned"
        yield {"epoch": 3, "replicaset_id": number, "space": "accounts", "lsn": lsn, "reason": reason}


def _of_pending(number: int) -> Any:
    yield {"replicaset_id": number, "source": f"source-{number}", "reason": "beyond a missing lsn", "lsn": 8}


def _of_schema(number: int) -> Any:
    for epoch, fields in ((0, ["id"]), (2, ["id", "balance"])):
        yield {
            "epoch": epoch,
            "replicaset_id": number,
            "space_id": 512,
            "name": "accounts",
            "table_name": "accounts",
            "engine": "memtx",
            "format": json.dumps(
                [{"name": name, "type": "unsigned", "is_nullable": False} for name in fields]
            ),
            "primary_key": json.dumps([{"field": 0, "type": "unsigned"}]),
            "state": "present",
        }
