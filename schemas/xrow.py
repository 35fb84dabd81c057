"""The Arrow schema of `format("xlog")`: one row per row of a log.

The columns are named as in Tarantool's own `xlog.pairs` (`src/lua/xlog.lua`). Rows read from several sources
of a deployment (option `sources`) have `REPLICASET_FIELDS` in front. `sources.xlog.datasource` converts the schema for
Spark; readers of logs need no Spark.
"""

import pyarrow as pa

XROW_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("file", pa.string()),
    ("position", pa.int64()),
    ("row", pa.int32()),
    ("instance_uuid", pa.string()),
    ("type", pa.string()),
    ("replica_id", pa.int32()),
    ("group_id", pa.int32()),
    ("lsn", pa.int64()),
    ("tsn", pa.int64()),
    ("is_commit", pa.bool_()),
    ("wait_sync", pa.bool_()),
    ("wait_ack", pa.bool_()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("space_id", pa.int32()),
    ("index_base", pa.int32()),
    ("key", pa.binary()),
    ("tuple", pa.binary()),
    ("operations", pa.binary()),
    ("body", pa.binary()),
)
"""Name and Arrow type of each column, in order. All but `file`, `position`, `row` may be null."""

REPLICASET_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("replicaset_uuid", pa.string()),
    ("source", pa.string()),
    ("segment", pa.int32()),
)
"""Columns in front of `XROW_FIELDS` if several sources are read as one.

A *segment* is a part of one file that a batch reads. `segment` is its number within the batch, unique over all
replicasets; the segments of a replicaset are numbered in the order of its log. So (segment, position, row) is the order
of a replicaset's rows within a batch."""

XROW_ARROW = pa.schema(XROW_FIELDS)
SOURCES_ARROW = pa.schema(REPLICASET_FIELDS + XROW_FIELDS)

CORRUPT_COLUMN = "_corrupt_record"
"""The column that `mode` PERMISSIVE adds: file, offset and reason of unreadable data."""
