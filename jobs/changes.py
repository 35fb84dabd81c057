"""Prints the change feed of a space's table as JSON lines; `observe.change_feed` reads it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.types import VariantVal

from jobs.runtime.command_line import finished
from observe.change_feed import DELETE, INSERT, UPDATE_BEFORE, EpochChanges, table_changes
from observe.log_rows.row_format import to_json_value
from schemas.names import is_space_table, table_name
from warehouse.location import WarehouseLocation
from warehouse.newest_epoch import last_epoch, no_batch_error

LOOK_SECONDS = 1.0
"""Seconds between two checks for a new epoch while the feed is followed."""

_OPERATIONS = {INSERT: "insert", DELETE: "delete"}


def show(
    location: WarehouseLocation,
    space: str,
    after: int | None = None,
    upto: int | None = None,
    *,
    config: str = "FILE",
    follow: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Print each change of a winning row as a JSON line; with `follow` until the process is stopped.

    Parameters
    ----------
    location : WarehouseLocation
    space : str
        Name of the space or of its table.
    after, upto : int or None
        The feed has the changes of the epochs after `after` (None: of all epochs) up to `upto` (None, or a later epoch
        than the newest one: up to the newest one).
    config : str
        Path of the configuration, for the command that the output suggests.
    follow : bool
        Whether to wait for new epochs.
    wait : callable
        Called with the seconds to wait before the next look.

    Raises
    ------
    WarehouseError
        No batch is done yet, and the feed is not followed.

    """
    table = space if location.has(space) and is_space_table(space) else table_name(space)
    count, last = 0, after
    while True:
        newest = last_epoch(location) if upto is None else min(upto, last_epoch(location))
        if newest < 0 and not follow:
            raise no_batch_error(location.root)
        if newest >= 0 and newest != last:
            for one in table_changes(location, table, last, newest):
                for text in lines(one):
                    print(text)
                    count += 1
            last = newest
            sys.stdout.flush()
        if not follow:
            break
        wait(LOOK_SECONDS)
    again = f"aggregator changes {space} --config {config} --after {last}"
    finished(f"{count} changes of {table}, up to epoch {last}", again)
    return 0


def lines(one: EpochChanges) -> Iterator[str]:
    """Yield the changes of one epoch as JSON objects in text.

    The keys are `epoch`, `op` (insert, update or delete), `before` and `after` (rows, or null), and `source` (who wrote
    the row; null for a deletion).
    """
    before: Mapping[str, Any] | None = None
    for row in _rows(one.rows):
        kind = row["_change_type"]
        if kind == UPDATE_BEFORE:
            before = row
            continue
        image = None if kind == DELETE else _space_columns(row)
        last = row if kind == DELETE else before
        yield json.dumps(
            {
                "epoch": one.epoch,
                "op": _OPERATIONS.get(kind, "update"),
                "before": None if last is None else _space_columns(last),
                "after": image,
                "source": {
                    "replicaset_id": row["_replicaset_id"],
                    "global_id": row["_global_id"],
                    "lsn": row["_lsn"],
                    "timestamp": None if row["_timestamp"] is None else row["_timestamp"].isoformat(),
                }
                if image is not None
                else None,
            },
            ensure_ascii=False,
            default=str,
        )
        before = None


def _rows(rows: pa.Table) -> Iterator[Mapping[str, Any]]:
    for batch in rows.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _space_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the space, and `_extra` if a tuple has more fields than its format."""
    found = {name: _json_value(value) for name, value in row.items() if not name.startswith("_")}
    extra = row.get("_extra")
    return found if extra is None else {**found, "_extra": _json_value(extra)}


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping) and set(value) == {"metadata", "value"}:
        return json.loads(VariantVal(value["value"], value["metadata"]).toJson())
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return int(value)
    return to_json_value(value)
