"""The columns of the Delta tables that every warehouse has, and those that every space's table has.

Spark types only; `warehouse` writes the tables. The typed columns of a space come from its format (`schemas.layout`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from schemas.states import ConflictKind, GapState, VersionState

_INT, _LONG, _STRING, _BINARY, _TIME = IntegerType(), LongType(), StringType(), BinaryType(), TimestampType()


def _nullable_columns(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable=True) for name, kind in columns.items()])


CLUSTER = _nullable_columns(
    global_id=_LONG,
    uuid=_STRING,
    local_id=_INT,
    replicaset_id=_INT,
    lsn=_LONG,
    replicaset_uuid=_STRING,
    first_seen=_TIME,
    expelled_at=_TIME,
)
"""`_cluster`: the global id of each instance uuid, by the rules of `udfs.remap.cluster_replace`. Key: uuid."""

APPLIER_MAP = _nullable_columns(
    replicaset_id=_INT,
    source=_STRING,
    local_id=_INT,
    global_id=_LONG,
    since_lsn=_LONG,
    expelled=BooleanType(),
    epoch=_LONG,
)
"""`_applier_map`: the instance `global_id` wrote the rows of replica id `local_id` with lsn >= `since_lsn`."""

VCLOCK = _nullable_columns(replicaset_id=_INT, global_id=_LONG, local_id=_INT, lsn=_LONG, epoch=_LONG)
"""`_vclock`: one row per change of a component; the row with the highest epoch counts."""

XROW = (
    ("file", _STRING),
    ("position", _LONG),
    ("row", _INT),
    ("instance_uuid", _STRING),
    ("type", _STRING),
    ("replica_id", _INT),
    ("group_id", _INT),
    ("lsn", _LONG),
    ("tsn", _LONG),
    ("timestamp", _TIME),
    ("space_id", _INT),
    ("index_base", _INT),
    ("key", _BINARY),
    ("tuple", _BINARY),
    ("operations", _BINARY),
    ("body", _BINARY),
)
"""The columns of an xrow that both `_changelog` and `_pending` have.

These are `schemas.xrow.XROW_FIELDS` without `is_commit`, `wait_sync` and `wait_ack`: a settled row needs no flags of
its transaction. `_pending` has them in addition."""

CHANGELOG = _nullable_columns(
    epoch=_LONG,
    replicaset_id=_INT,
    source=_STRING,
    segment=_INT,
    global_id=_LONG,
    state=_STRING,
    space=_STRING,
    layout=_INT,
    hash=_LONG,
    **dict(XROW),
    server_version=_STRING,
    moved=_STRING,
)
"""`_changelog`: every xrow after it is settled. (epoch, segment, position, row) is the order of the log.

A row is *settled* when it is decided whether it counts: its transaction is complete, a CONFIRM or ROLLBACK has decided
a synchronous transaction, no earlier row of its instance is missing, and its global id and its space are known.

`server_version` is the version of the server whose log the row was read from, such as 2.6.0: operations are applied by
its rules. It is null in rows that a release without this column wrote. `moved` marks rows that vshard's rebalancer
made: `received` with a bucket, or `collected` after the bucket was sent; null in all other rows."""

PENDING = _nullable_columns(
    replicaset_id=_INT,
    source=_STRING,
    segment=_INT,
    reason=_STRING,
    is_commit=BooleanType(),
    wait_sync=BooleanType(),
    wait_ack=BooleanType(),
    **dict(XROW),
    server_version=_STRING,
    earlier=_STRING,
)
"""`_pending`: xrows that are not settled yet (`CHANGELOG`). (segment, position, row) is the order of their log.

`server_version` is as in `_changelog`. `earlier` is the vclock at the start of the file that has the row, from the
file's header, as JSON: `{"1": 5}`."""

SCHEMA = _nullable_columns(
    epoch=_LONG,
    replicaset_id=_INT,
    space_id=_INT,
    name=_STRING,
    table_name=_STRING,
    engine=_STRING,
    format=_STRING,
    primary_key=_STRING,
    state=_STRING,
    since_lsn=_LONG,
    since_replica_id=_INT,
    space_tuple=_BINARY,
    index_tuples=MapType(_INT, _BINARY),
    keys=_STRING,
    followed=_STRING,
)
"""`_schema`: each version of each space.

`space_tuple` and `index_tuples` are the space's rows of `_space` and `_index`; `keys` are the primary keys that the
space has had since it was created, as JSON. `followed` is only for a refused space, whose rows stay in its table as
they are: the last definition by which these rows were decoded, as JSON (the JSON value `null` if the table has no rows
of the space). It is SQL's null for all other spaces, and in rows of releases without this column."""

VERSIONS = _nullable_columns(
    space=_STRING,
    key=_BINARY,
    replicaset_id=_INT,
    tuple=_BINARY,
    global_id=_LONG,
    lsn=_LONG,
    timestamp=_TIME,
    created=_TIME,
    state=_STRING,
    epoch=_LONG,
)
"""`_versions`: a replicaset's own version of a key, unless this version is the row in the space's table.

Rows are only appended. Of the rows of one (space, key, replicaset_id) the one with the highest epoch counts. None of
them counts while the space's table has a row of this replicaset (`_replicaset_id`) under the key: that row was written
later. `state`: present, deleted, unfit (the tuple is unknown or was set aside in `_quarantine`), removed (there is no
version any more)."""

CONFLICTS = _nullable_columns(
    epoch=_LONG,
    decided_at=_TIME,
    space=_STRING,
    key=_BINARY,
    kind=_STRING,
    policy=_STRING,
    sequence=_STRING,
    winner_replicaset_id=_INT,
    winner_global_id=_LONG,
    winner_lsn=_LONG,
    winner_timestamp=_TIME,
    winner_tuple=_BINARY,
    loser_replicaset_id=_INT,
    loser_global_id=_LONG,
    loser_lsn=_LONG,
    loser_timestamp=_TIME,
    loser_tuple=_BINARY,
    changed=_STRING,
    note=_STRING,
)
"""`_conflicts`: each decision of before_replace between two replicasets' versions of one key.

`kind`: key; secondary, if two winners violate a unique index of the space together; or doubled, if a bucket of vshard
is active in two replicasets with different versions of the key. `sequence`: the criterion that decided, such as
`updated`, `timestamp`, `max(balance)`. `changed`: which of the two versions was new: winner, loser, both. If the policy
made the winner from several versions, `winner_replicaset_id` is minus the id of the last writer's replicaset."""

QUARANTINE = _nullable_columns(
    epoch=_LONG,
    replicaset_id=_INT,
    space=_STRING,
    key=_BINARY,
    tuple=_BINARY,
    operations=_BINARY,
    global_id=_LONG,
    lsn=_LONG,
    file=_STRING,
    position=_LONG,
    reason=_STRING,
    misfits=ArrayType(_STRING),
)
"""`_quarantine`: rows that cannot be applied, or only in part, with the reason.

`misfits` are the columns that cannot hold their values: they are null in the table's row, which has the exact tuple. If
`misfits` is null, the whole row was set aside. `space` is a table's name, or a system space (`_space`, `_cluster`)
whose row is invalid."""

VSHARD = _nullable_columns(
    epoch=_LONG,
    replicaset_id=_INT,
    bucket_id=_LONG,
    status=_STRING,
    peer=_STRING,
    since=_TIME,
    timestamp=_TIME,
    doubled_with=ArrayType(_INT),
)
"""`_vshard`: the states of vshard's buckets in each replicaset; of one bucket the row with the highest epoch counts.

`status` is null if the replicaset no longer has the bucket; `since`: when the replicaset got the bucket;
`doubled_with`: the other replicasets in which the bucket is active, null if there are none."""

GAPS = _nullable_columns(
    epoch=_LONG,
    found_at=_TIME,
    replicaset_id=_INT,
    source=_STRING,
    local_id=_INT,
    first_lsn=_LONG,
    last_lsn=_LONG,
    kind=_STRING,
    file=_STRING,
    state=_STRING,
)
"""`_gaps`: missing lsn ranges. `kind`: missing, divergence; `state`: open, skipped, filled, bridged by a
snapshot, healed. The latest epoch counts."""

EPOCHS = _nullable_columns(
    epoch=_LONG,
    query_id=_STRING,
    batch_id=_LONG,
    committed_at=_TIME,
    rows=_LONG,
    start_offset=_STRING,
    end_offset=_STRING,
    vclock=_STRING,
    versions=MapType(_STRING, _LONG),
    writers=_STRING,
    settings=_STRING,
    instant=_STRING,
    executor=_STRING,
)
"""`_epochs`: one row per batch, appended last: the commit of the batch.

`vclock`: JSON {replicaset uuid: {replica id: lsn}}; `versions`: table name to Delta version; `writers`: JSON
{table name: {"replicasets": [ids that wrote rows], "unfit": whether a version was set aside}}; `settings`: the batch's
configuration of spaces, policies, masks, types and sources as JSON.

`instant` is set if the epoch is an *instant*: a coordinator writes a marker with one label to all replicasets, while no
change is in flight between them, and the epoch has the rows of each replicaset up to this marker. `instant` is the
label; it is null for any other epoch (`sources.xlog.stream.instants`). `executor`: what processed the batch, the
`driver`, `driver_alone` (which also read the logs) or Spark's `tasks`; null for work between two batches."""

REQUESTS = _nullable_columns(
    request=_STRING,
    kind=_STRING,
    arguments=_STRING,
    state=_STRING,
    asked_at=_TIME,
    changed_at=_TIME,
    message=_STRING,
)
"""`_requests`: requests to the writer; the latest `changed_at` of a `request` counts."""

RETENTION = _nullable_columns(
    epoch=_LONG,
    cleaned_at=_TIME,
    table=_STRING,
    replicaset_id=_INT,
    global_id=_LONG,
    lsn=_LONG,
    rows=_LONG,
    local_id=_INT,
)
"""`_retention`: what maintenance has removed from a table by age.

For `_changelog` there is one row per instance and replica id: their rows up to `lsn` are removed, except rows that
define spaces and members, and rows of spaces that are refused or wait for their definition
(`pipeline.retention.changelog`). `local_id` is null in rows of releases without this column."""

VALIDATIONS = _nullable_columns(
    run=_STRING,
    validated_at=_TIME,
    epoch=_LONG,
    table=_STRING,
    expectation=_STRING,
    holds=BooleanType(),
    rows=_LONG,
    unexpected=_LONG,
    examples=_STRING,
    error=_STRING,
    source=_STRING,
)
"""`_validations`: the result of each expectation, by run; the first run creates the table. `epoch`: the validated
versions; `examples`: a JSON list; `source`: the user's file, null for the aggregator's own expectations."""


@dataclass(frozen=True)
class OwnTable:
    """A table that every warehouse has from its first start on, and what validation expects of its rows."""

    columns: StructType
    description: str
    unique: tuple[str, ...] = ()
    """Columns with a different value in each row."""
    keys: tuple[str, ...] = ()
    """Columns that identify a row in examples; a table without them is not validated as a table of its own."""
    never_null: tuple[str, ...] = ()
    global_ids: tuple[str, ...] = ()
    """Columns with global ids, which are null in rows that name no instance."""
    past_times: tuple[str, ...] = ()
    """Columns with times that must not be in the future."""
    states: tuple[str, type[StrEnum]] | None = None
    """A column, and all values that the aggregator writes into it."""


OWN_TABLES: Mapping[str, OwnTable] = {
    "_cluster": OwnTable(
        CLUSTER,
        "Every instance of every replicaset: its uuid and its global id.",
        unique=("uuid", "global_id"),
        keys=("uuid",),
        never_null=("global_id", "uuid", "replicaset_id"),
        past_times=("first_seen",),
    ),
    "_applier_map": OwnTable(
        APPLIER_MAP,
        "Which instance a replica id means in each replicaset, and from which lsn on.",
        keys=("replicaset_id", "local_id", "global_id"),
        never_null=("replicaset_id", "local_id", "global_id", "since_lsn"),
        global_ids=("global_id",),
    ),
    "_vclock": OwnTable(
        VCLOCK,
        "The last settled lsn of each instance in each replicaset; the row of the highest epoch counts.",
        keys=("replicaset_id", "global_id", "local_id"),
        never_null=("replicaset_id", "lsn"),
        global_ids=("global_id",),
    ),
    "_changelog": OwnTable(CHANGELOG, "Every row of the logs, append-only."),
    "_pending": OwnTable(
        PENDING,
        "Rows of the logs that wait for missing rows, a CONFIRM, a global id or a definition.",
        keys=("source", "file", "position"),
        never_null=("reason",),
    ),
    "_schema": OwnTable(
        SCHEMA,
        "Every version of every space, and the table that it goes to.",
        keys=("replicaset_id", "space_id", "name"),
        never_null=("replicaset_id", "space_id", "name", "state", "space_tuple"),
    ),
    "_versions": OwnTable(
        VERSIONS,
        "Each replicaset's own version of a key, unless it is the row of the space's table.",
        keys=("space", "key", "replicaset_id"),
        never_null=("space", "key", "replicaset_id"),
        global_ids=("global_id",),
        past_times=("timestamp", "created"),
        states=("state", VersionState),
    ),
    "_conflicts": OwnTable(
        CONFLICTS,
        "Each decision between versions of two replicasets.",
        keys=("space", "key", "epoch"),
        never_null=("space", "key"),
        global_ids=("winner_global_id", "loser_global_id"),
        past_times=("winner_timestamp", "loser_timestamp"),
        states=("kind", ConflictKind),
    ),
    "_quarantine": OwnTable(
        QUARANTINE,
        "Rows that cannot be applied, or only in part, with the reason. Where `file` is null, as with `misfits`, "
        "`_changelog` has it under the row's `global_id` and `lsn`.",
        keys=("space", "file", "position"),
        never_null=("reason",),
        global_ids=("global_id",),
    ),
    "_vshard": OwnTable(
        VSHARD,
        "The state of each bucket of vshard in each replicaset; the row of the highest epoch counts.",
        keys=("epoch", "replicaset_id", "bucket_id"),
        never_null=("epoch", "replicaset_id", "bucket_id"),
    ),
    "_gaps": OwnTable(
        GAPS,
        "Missing ranges of lsns, and divergences.",
        keys=("replicaset_id", "local_id", "first_lsn", "last_lsn"),
        never_null=("replicaset_id", "kind"),
        states=("state", GapState),
    ),
    "_epochs": OwnTable(
        EPOCHS,
        "One row per batch: the commit of the batch, and a consistent snapshot of all tables.",
        unique=("epoch",),
        keys=("epoch",),
        never_null=("epoch", "versions", "vclock"),
        past_times=("committed_at",),
    ),
    "_requests": OwnTable(REQUESTS, "Requests to the writer; the latest changed_at of a request counts."),
    "_retention": OwnTable(
        RETENTION,
        "What maintenance has removed.",
        keys=("epoch", "table", "replicaset_id", "global_id", "local_id"),
        never_null=("epoch", "cleaned_at", "table", "rows"),
        global_ids=("global_id",),
        past_times=("cleaned_at",),
    ),
}
"""The aggregator's own tables. `schemas.descriptions.COLUMNS` has a sentence for each name of a column."""

SYSTEM_TABLES: dict[str, StructType] = {name: one.columns for name, one in OWN_TABLES.items()}

VERSION_COLUMNS: tuple[tuple[str, DataType], ...] = (
    ("_key", _BINARY),
    ("_tuple", _BINARY),
    ("_global_id", _LONG),
    ("_replicaset_id", _INT),
    ("_lsn", _LONG),
    ("_timestamp", _TIME),
    ("_created", _TIME),
)
"""Columns after the typed ones and `_extra` in every space's table: the winning version.

`_key` is the canonical primary key (`udfs.keys.keys`), unique in the table."""
