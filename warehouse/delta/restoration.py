"""Takes a table back to an earlier version by one commit: what an unfinished batch wrote is removed.

delta-rs' RESTORE says that its removals change data, and a Spark stream that reads the table fails at such a commit.
The aggregator's own tables are appended to, and users may stream them. So there the commit says that no data changes
(`dataChange`): a stream continues. A row that it has passed on counts if `_epochs` has the row's epoch; the number of a
batch that was rolled back is never used again (`pipeline.commit.epoch.after_roll_back`).
"""

from urllib.parse import unquote

import pyarrow.fs as pafs
from deltalake import DeltaTable

from schemas.errors import WarehouseError
from schemas.names import is_space_table
from warehouse.delta.commit_actions import remove_file
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import now_millis
from warehouse.delta.foreign_changes import is_of_a_writer
from warehouse.delta.table_log import Action, LogState, read_commit, read_log


def restore(
    tables: OpenTables, table: str, opened: DeltaTable, version: int, *, with_protocol: bool = False
) -> int:
    """Take a table back to a version, and return its version after that.

    Args:
        opened: The table at the version that was compared; if somebody commits after it, nothing is done.
        with_protocol: Whether features and columns that others have added since are taken back too.

    Raises:
        WarehouseError: The version, or a file of it, is not there any more; or somebody has committed meanwhile.
    """
    location = tables.location
    tables.forget(table)
    tables.keep_open(table, opened)
    try:
        now, before = read_log(location, table, int(opened.version())), read_log(location, table, version)
    except WarehouseError as error:
        raise WarehouseError(f"version {version} cannot be restored: {error.reason}", table=table) from error
    changes = _restoring_actions(now, before, is_change=is_space_table(table))
    paths = [location.at(table, unquote(one["add"]["path"])) for one in changes if "add" in one]
    found = location.fs.get_file_info(paths) if paths else ()
    lost = [one.path for one in found if one.type == pafs.FileType.NotFound]
    if lost:
        raise WarehouseError(
            f"version {version} cannot be restored: a file of it is gone", table=table, file=lost[0]
        )
    if with_protocol:
        changes += [{"protocol": before.protocol}, {"metaData": before.metadata}]
    elif any(_changes_metadata(read_commit(location, table, n)) for n in range(version + 1, now.version + 1)):
        changes.append({"metaData": before.metadata})
    return tables.put_changes(table, changes, ("RESTORE", {"version": version}))


def _restoring_actions(now: LogState, before: LogState, *, is_change: bool) -> list[Action]:
    moment = now_millis()
    same = {
        path for path in now.adds.keys() & before.adds.keys() if now.vector_of(path) == before.vector_of(path)
    }
    removed = [add for path, add in now.adds.items() if path not in same]
    added = [add for path, add in before.adds.items() if path not in same]
    return [
        *(remove_file(add, moment, is_change=is_change) for add in removed),
        *({"add": {**add, "dataChange": is_change}} for add in added),
    ]


def _changes_metadata(actions: list[Action] | None) -> bool:
    return actions is not None and is_of_a_writer(actions) and any(one.get("metaData") for one in actions)
