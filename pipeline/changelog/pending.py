"""Rows that wait, as rows of `_pending`. Pure."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.changelog.segment_plan import SegmentPlan
from schemas.tables import PENDING

PENDING_ARROW = to_arrow_schema(PENDING, timezone="UTC")


def pending_rows(rows: pa.RecordBatch, plan: SegmentPlan) -> pa.RecordBatch:
    """Return rows that wait as rows of `_pending`."""
    count = rows.num_rows
    values = {
        "replicaset_id": plan.replicaset_id,
        "source": plan.source,
        "segment": plan.segment,
        "reason": plan.reason,
    }
    columns = [
        pa.repeat(pa.scalar(values[field.name], field.type), count)
        if field.name in values
        else rows.column(field.name)
        for field in PENDING_ARROW
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PENDING_ARROW)
