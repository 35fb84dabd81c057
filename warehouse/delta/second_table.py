"""Puts the files of a second table in the place of a table's own, in one commit: readers see the one or the other.

Data files and deletion vectors never change, so on a local disk they are not copied: both tables have links to them.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql.types import StructType

from warehouse.delta.commit_actions import (
    metadata_with,
    protocol_for,
    remove_file,
    vectors_enabled,
    with_users_columns,
)
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import now_millis
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_log import Action, LogState

PARALLEL_COPIES = 8
"""The number of files that are copied at a time; an object store copies them by itself."""


def copy_files(source: WarehouseLocation, target: WarehouseLocation, table: str, state: LogState) -> None:
    """Copy the files of a version of a table, without those that are copied already, to a table of the same name."""
    vectors = {vector.path for vector in state.vectors().values()}
    names = sorted({unquote(path) for path in state.adds} | {unquote(path) for path in vectors if path})
    target.fs.create_dir(target.at(table))

    def copy(name: str) -> None:
        old, new = source.at(table, name), target.at(table, name)
        if target.is_local:
            if not Path(new).exists():
                _link(Path(old), Path(new))
        elif target.fs.get_file_info(new).size is None:
            target.fs.copy_file(old, new)

    with ThreadPoolExecutor(PARALLEL_COPIES) as pool:
        list(pool.map(copy, names))


def _link(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except OSError:  # a file system without links
        part = new.with_name(f".{new.name}.part")
        part.write_bytes(old.read_bytes())
        part.rename(new)


def take_files(
    tables: OpenTables, table: str, other: LogState, schema: StructType, properties: Mapping[str, str]
) -> int:
    """Replace the files and columns of a table by those of another one, in one commit; return the new version.

    Args:
        other: The log of the other table, whose files are copied already.
        properties: Further properties of the table.
    """
    state, moment = tables.log(table), now_millis()
    removed = [remove_file(add, moment, is_change=True) for add in state.adds.values()]
    added: list[Action] = [
        {"add": {**add, "dataChange": True, "modificationTime": moment}} for add in other.adds.values()
    ]
    metadata = state
    if other.vectors():
        actions = vectors_enabled(state, forgets_soon=tables.location.is_local)
        metadata = state.after(state.version, actions)
    protocol = [one for one in protocol_for(metadata, schema) if "protocol" in one]
    if not protocol and metadata.protocol != state.protocol:
        protocol = [{"protocol": metadata.protocol}]
    columns = with_users_columns(state, schema)
    changes = [*protocol, metadata_with(metadata, schema=columns, properties=properties), *removed, *added]
    return tables.put_changes(table, changes)
