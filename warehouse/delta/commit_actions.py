"""The actions of the aggregator's commits to Delta tables, as the log has them. Pure.

Source: Delta protocol, "Actions".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from warehouse.delta.deletion_vectors import ENABLING_PROPERTY, FEATURE, Descriptor
from warehouse.delta.table_log import Action, LogState

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

USER_METADATA = "tarantool-aggregator"
"""The `userMetadata` of every commit of the aggregator."""

Operation = tuple[str, Mapping[str, Any]]
"""The name of an operation, as Spark names it, and its parameters, for the history of a table."""

WRITE: Operation = ("WRITE", {"mode": "Append"})

READER_VERSION, WRITER_VERSION = 3, 7
"""The versions of a protocol that lists table features."""

VARIANT_FEATURE = "variantType"

USERS_COLUMNS_PROPERTY = "aggregator.usersColumns"
"""The property of a table with the names of the columns that others have added: a JSON list."""

REMOVED_FILES_PROPERTY, REMOVED_FILES_KEPT = "delta.deletedFileRetentionDuration", "interval 1 hours"
"""The property by which a log keeps the names of removed files, and its value in a table with deletion vectors."""

LOOSE_BOUNDS = '"tightBounds": false'
"""What statistics have at their end that a commit of the aggregator wrote with a vector."""

_FEATURES_BY_WRITER_VERSION: Mapping[int, tuple[str, ...]] = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""The features that an older writer version means (Delta protocol, "Valid Feature Names in Table Features")."""


def commit_info(operation: str, parameters: Mapping[str, Any], moment: int, *, is_append: bool) -> Action:
    """Return what the history of a table shows about a commit.

    Args:
        is_append: Whether the commit adds rows without having read any.
    """
    return {
        "commitInfo": {
            "timestamp": moment,
            "operation": operation,
            "operationParameters": {name: json.dumps(value) for name, value in parameters.items()},
            "isBlindAppend": is_append,
            "engineInfo": USER_METADATA,
            "userMetadata": USER_METADATA,
        }
    }


def transaction(app_id: str, number: int, moment: int) -> Action:
    """Return the action that records the newest transaction of an application."""
    return {"txn": {"appId": app_id, "version": number, "lastUpdated": moment}}


def add_file(path: str, size: int, stats: str, moment: int, *, is_change: bool) -> Action:
    """Return the action that adds a file; `is_change`: the table did not have its rows before."""
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": size,
            "modificationTime": moment,
            "dataChange": is_change,
            "stats": stats,
        }
    }


def add_again(add: Mapping[str, Any], vector: Descriptor | None, *, is_change: bool = True) -> Action:
    """Return the action that adds a live file again, with another deletion vector or without one.

    The bounds in its statistics stay, but may be those of deleted rows, which `tightBounds` says.
    """
    found = {name: value for name, value in add.items() if name != "deletionVector"}
    is_bounded_loosely = add.get("deletionVector") is not None and vector is not None
    if found.get("stats") and not (is_bounded_loosely and LOOSE_BOUNDS in found["stats"]):
        stats = json.loads(found["stats"])
        found["stats"] = json.dumps({**stats, "tightBounds": vector is None}, ensure_ascii=False)
    if vector is not None:
        found["deletionVector"] = vector.as_action()
    return {"add": {**found, "dataChange": is_change}}


def remove_file(add: Mapping[str, Any], moment: int, *, is_change: bool) -> Action:
    """Return the action that removes a live file; `is_change`: the commit does not add all of its rows again."""
    removed = {
        "path": add["path"],
        "deletionTimestamp": moment,
        "dataChange": is_change,
        "extendedFileMetadata": True,
        "partitionValues": add.get("partitionValues") or {},
        "size": add.get("size"),
    }
    if add.get("deletionVector"):
        removed["deletionVector"] = add["deletionVector"]
    return {"remove": removed}


def users_columns_in(properties: Mapping[str, str]) -> list[str]:
    """Return the names of the columns that others have added, from the properties of a table."""
    found: list[str] = json.loads(properties.get(USERS_COLUMNS_PROPERTY, "[]"))
    return found


def with_users_columns(state: LogState, schema: StructType) -> StructType:
    """Return new columns of a table with those that others have added to it."""
    from pyspark.sql.types import StructType  # commands that only look at commits do not need it

    names = {*users_columns_in(state.properties)} - {*schema.names}
    present = StructType.fromJson(json.loads(state.metadata["schemaString"])) if names else StructType()
    return StructType([*schema.fields, *(field for field in present if field.name in names)])


def metadata_with(
    state: LogState, *, schema: StructType | None = None, properties: Mapping[str, str] | None = None
) -> Action:
    """Return the metadata of a table with other columns, or with further properties."""
    changed = dict(state.metadata)
    if schema is not None:
        changed["schemaString"] = schema.json()
    if properties is not None:
        changed["configuration"] = {**state.properties, **properties}
    return {"metaData": changed}


def protocol_for(state: LogState, schema: StructType) -> list[Action]:
    """Return the protocol that a table with these columns needs; empty if it has it already."""
    from pyspark.sql.types import VariantType

    has_variant = any(isinstance(column.dataType, VariantType) for column in schema)
    return [] if not has_variant else with_features(state, [VARIANT_FEATURE])


def vectors_enabled(state: LogState, *, forgets_soon: bool) -> list[Action]:
    """Return the actions that allow deletion vectors in a table; empty if they are allowed already.

    Args:
        forgets_soon: Whether the log forgets removed files after an hour. A batch names each file of the table that it
            touches, so within days a log would have millions of removed files in each checkpoint.
    """
    actions = with_features(state, [FEATURE])
    if state.properties.get(ENABLING_PROPERTY) != "true":
        properties = {ENABLING_PROPERTY: "true"}
        if forgets_soon and REMOVED_FILES_PROPERTY not in state.properties:
            properties[REMOVED_FILES_PROPERTY] = REMOVED_FILES_KEPT
        actions.append(metadata_with(state, properties=properties))
    return actions


def with_features(state: LogState, features: Iterable[str]) -> list[Action]:
    """Return the protocol with further features for readers and writers; empty if the table has them."""
    protocol = state.protocol
    missing = sorted(set(features) - set(protocol.get("readerFeatures") or ()))
    if not missing:
        return []
    version = int(protocol.get("minWriterVersion") or 1)
    implied = (
        ()
        if version >= WRITER_VERSION
        else (
            name
            for number, names in _FEATURES_BY_WRITER_VERSION.items()
            if number <= version
            for name in names
        )
    )
    writers = {*(protocol.get("writerFeatures") or ()), *implied, *missing}
    return [
        {
            "protocol": {
                "minReaderVersion": READER_VERSION,
                "minWriterVersion": WRITER_VERSION,
                "readerFeatures": sorted({*(protocol.get("readerFeatures") or ()), *missing}),
                "writerFeatures": sorted(writers),
            }
        }
    ]
