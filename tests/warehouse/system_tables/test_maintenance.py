"""Which epochs are kept: arithmetic over what maintenance has done."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import LongType, StructField, StructType

from warehouse.delta.write import CHECKPOINT_INTERVAL, create
from warehouse.system_tables.maintenance import (
    FILES_PROPERTY,
    LOG_PROPERTY,
    NO_HORIZON,
    first_readable_epoch,
    horizon_of,
    retention_days,
    set_retention,
)
from warehouse.warehouse import Warehouse

DAY = datetime(2026, 11, 20, tzinfo=UTC)


ODD_DAYS = ("null", '"x"', "[]", "-9", "0", "1e999", "1e15", "999999")


def request(kind: str, state: str, day: int, keep_days: int) -> dict[str, Any]:
    arguments = f'{{"keep_days": {keep_days}}}'
    return {"kind": kind, "state": state, "changed_at": DAY + timedelta(days=day), "arguments": arguments}


def test_the_furthest_reach_of_any_maintenance_counts() -> None:
    asked = request("maintenance", "asked", 9, 7)
    other = request("backfill", "done", 9, 7)
    assert horizon_of([asked, other]) == NO_HORIZON
    assert horizon_of([request("maintenance", "done", 0, 7), request("maintenance", "done", 1, 30)]) == (
        DAY - timedelta(days=7)
    )
    # One that failed may have removed files before.
    assert horizon_of([request("maintenance", "failed", 0, 7)]) == DAY - timedelta(days=7)


@pytest.mark.parametrize(
    "arguments", ["", "x", "[]", "{}", "[" * 9999, None, *(f'{{"keep_days": {one}}}' for one in ODD_DAYS)]
)
def test_a_refused_maintenance_has_reached_nowhere(arguments: str | None) -> None:
    done = request("maintenance", "done", 0, 30)
    refused = request("maintenance", "failed", 9, 7) | {"arguments": arguments}
    assert horizon_of([refused, done]) == DAY - timedelta(days=30)


def test_the_epoch_that_was_the_newest_at_the_horizon_is_kept() -> None:
    epochs = {number: DAY + timedelta(days=number) for number in (3, 4, 5)}
    assert first_readable_epoch(epochs, NO_HORIZON) == 3
    assert first_readable_epoch(epochs, DAY + timedelta(days=4)) == 4
    assert first_readable_epoch(epochs, DAY + timedelta(days=4, hours=23)) == 4
    assert first_readable_epoch(epochs, DAY + timedelta(days=99)) == 5


@pytest.mark.parametrize(
    ("name", "text", "days"),
    [
        (FILES_PROPERTY, None, 7),
        (LOG_PROPERTY, None, 30),
        (FILES_PROPERTY, "interval 14 days", 14),
        (FILES_PROPERTY, "interval 1 week", 7),
        (FILES_PROPERTY, "interval 90 hours", None),
        (FILES_PROPERTY, "interval 1 year", None),
    ],
)
def test_a_retention_is_read_as_delta_writes_it(name: str, text: str | None, days: float | None) -> None:
    assert retention_days(name, text) == days


def test_the_retention_changes_no_interval_between_checkpoints(tmp_path: Path) -> None:
    warehouse = Warehouse(None, str(tmp_path))
    create(warehouse.location, "new", StructType([StructField("x", LongType())]))
    configuration = {CHECKPOINT_INTERVAL: "40"}
    write_deltalake(warehouse.location.uri("own"), pa.table({"x": [1]}), configuration=configuration)
    assert [set_retention(warehouse, table, 7) for table in ("own", "new")] == [False, False]
    assert [warehouse.property(table, CHECKPOINT_INTERVAL) for table in ("own", "new")] == ["40", "10"]
