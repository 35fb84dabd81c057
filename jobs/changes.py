"""Prints the change feed of a space's table as JSON lines; `observe.change_feed` reads it."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.types import VariantVal

from jobs.runtime.command_line import print_result
from jobs.runtime.output import say
from observe.change_feed import DELETE, INSERT, UPDATE_BEFORE, EpochChanges, changes
from observe.log_rows.row_format import to_json_value
from schemas.names import is_space_table, table_name
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import last_epoch, no_batch_error

POLL_SECONDS = 1.0
"""Seconds between two checks for a new epoch while the feed is followed."""

_OPERATION_BY_CHANGE_TYPE = {INSERT: "insert", DELETE: "delete"}


def show(
    location: WarehouseLocation,
    space: str,
    after_epoch: int | None = None,
    upto_epoch: int | None = None,
    *,
    config: str = "FILE",
    follow: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Print each change of a winning row as a JSON line; with `follow` until the process is stopped.

    Args:
        after_epoch: Print only the changes of later epochs; None: of all.
        config: Path of the configuration, for the command that the output suggests.
        follow: Whether to wait for new epochs.

    Raises:
        WarehouseError: No batch is done yet, and `follow` is False.
    """
    table = space if location.has(space) and is_space_table(space) else table_name(space)
    count, last = 0, after_epoch
    while True:
        newest = last_epoch(location) if upto_epoch is None else min(upto_epoch, last_epoch(location))
        if newest < 0 and not follow:
            raise no_batch_error(location.root)
        if newest >= 0 and newest != last:
            for one in changes(location, table, last, newest):
                for text in change_lines(one):
                    say(text)
                    count += 1
            last = newest
            sys.stdout.flush()
        if not follow:
            break
        sleep(POLL_SECONDS)
    again = f"aggregator changes {space} --config {config} --after {last}"
    print_result(f"{count} changes of {table}, up to epoch {last}", again)
    return 0


def change_lines(epoch_changes: EpochChanges) -> Iterator[str]:
    """Yield the changes of one epoch as JSON objects in text.

    The keys are `epoch`, `op` (insert, update or delete), `before` and `after` (rows, or null), and `source` (who wrote
    the row; null for a deletion).
    """
    before: Mapping[str, Any] | None = None
    for row in _row_dicts(epoch_changes.rows):
        kind = row["_change_type"]
        if kind == UPDATE_BEFORE:
            before = row
            continue
        image = None if kind == DELETE else _space_columns(row)
        last = row if kind == DELETE else before
        yield json.dumps(
            {
                "epoch": epoch_changes.epoch,
                "op": _OPERATION_BY_CHANGE_TYPE.get(kind, "update"),
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


def _row_dicts(rows: pa.Table) -> Iterator[Mapping[str, Any]]:
    for batch in rows.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _space_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the space's fields; also `_extra` if the tuple has more fields than the format."""
    found = {name: _json_value(value) for name, value in row.items() if not name.startswith("_")}
    extra = row.get("_extra")
    return found if extra is None else {**found, "_extra": _json_value(extra)}


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping) and set(value) == {"metadata", "value"}:
        return json.loads(VariantVal(value["value"], value["metadata"]).toJson())
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return int(value)
    return to_json_value(value)
