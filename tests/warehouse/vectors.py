"""Deletes rows of a table by deletion vectors, as other writers of Delta do: in a commit of JSON."""

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from warehouse.delta.commit_actions import USER_METADATA
from warehouse.delta.deletion_vectors import ENABLING_PROPERTY, FEATURE, Descriptor, bitmap_of
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.log_commit import put_commit
from warehouse.delta.table_files import live_files, read_row_groups
from warehouse.delta.table_log import Action, LogState, read_log
from warehouse.delta.vector_files import read_bitmap, write_vectors

Chosen = Callable[[pa.Table], list[bool]]
"""Returns for each of some rows whether to delete it."""


def delete_rows(location: WarehouseLocation, table: str, chosen: Chosen) -> int:
    """Delete rows in one commit, each file's by one vector, and return the table's version."""
    state = read_log(location, table)
    deleted = {}
    for file in live_files(state):
        gone = [
            group.numbers[np.array(chosen(group.rows), np.bool_)]
            for group in read_row_groups(location, table, file)
        ]
        rows = np.concatenate(gone)
        if len(rows):
            deleted[file.path] = bitmap_of(rows)
            if file.vector is not None:
                deleted[file.path] |= read_bitmap(location, table, file.vector)
    descriptors = write_vectors(location, table, deleted)
    actions: list[Action] = [{"commitInfo": {"operation": "DELETE", "userMetadata": USER_METADATA}}]
    if FEATURE not in state.features:
        actions += _enabled(state)
    for path, descriptor in descriptors.items():
        actions += _replaced(state.adds[path], descriptor)
    put_commit(location, table, state.version + 1, actions)
    return state.version + 1


def _enabled(state: LogState) -> list[Action]:
    kinds = {
        kind: sorted({*(state.protocol.get(kind) or ()), FEATURE})
        for kind in ("readerFeatures", "writerFeatures")
    }
    settings = {**state.properties, ENABLING_PROPERTY: "true"}
    return [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **kinds}},
        {"metaData": {**state.metadata, "configuration": settings}},
    ]


def _replaced(add: Action, descriptor: Descriptor) -> list[Action]:
    moment = int(time.time() * 1000)
    remove = {
        name: add[name] for name in ("path", "size", "partitionValues", "deletionVector") if name in add
    }
    remove |= {"deletionTimestamp": moment, "dataChange": True, "extendedFileMetadata": True}
    return [{"remove": remove}, {"add": {**add, "deletionVector": descriptor.as_action()}}]
