"""`_validations`: the result of each expectation in each run of a validation.

Rows are appended by delta-rs, without the writer lock: appends of several processes do not conflict, no batch reads or
writes the table, no epoch names it, and it is never rolled back. Nothing is written to a warehouse that is not a
primary (`warehouse.copies.rid.is_writable`), since it would then differ from its primary. Not here: what is expected
(`observe.validation`).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.pandas.types import to_arrow_schema

from schemas.tables import VALIDATIONS
from warehouse.delta.data_files import append_to
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.write import AGGREGATOR_COMMIT, create

TABLE = "_validations"


def append(
    location: WarehouseLocation, run_id: str, began_at: datetime, epoch: int, rows: Sequence[dict[str, Any]]
) -> None:
    """Append the results of a run in one commit; create the table if there is none."""
    whole = [{"run": run_id, "validated_at": began_at, "epoch": epoch, **row} for row in rows]
    found = pa.Table.from_pylist(whole, schema=to_arrow_schema(VALIDATIONS, timezone="UTC"))
    create(location, TABLE, VALIDATIONS)
    append_to(DeltaTable(location.uri(TABLE)), location, TABLE, found, AGGREGATOR_COMMIT)
