"""Columns that somebody else has added to a table: they stay, and are NULL in each row.

Their names are in a property of the table, since a log forgets in time who has added a column. A value in such a
column is a change of rows, which is refused.
"""

import json
from collections.abc import Collection, Mapping

from warehouse.delta.commit_actions import USERS_COLUMNS_PROPERTY, users_columns_in
from warehouse.delta.commits import OpenTables
from warehouse.delta.foreign_changes import is_of_a_writer
from warehouse.delta.foreign_commits import columns_of
from warehouse.delta.table_log import read_commit


def users_columns(tables: OpenTables, table: str, candidates: Collection[str]) -> frozenset[str]:
    """Return those of some columns of a table that somebody else has added, as far as its log or a property says so."""
    if not candidates:
        return frozenset()
    opened = tables.open(table)
    known = frozenset(users_columns_in(opened.metadata().configuration)) & frozenset(candidates)
    unknown = set(candidates) - known
    found: set[str] = set()
    adders: dict[str, bool] = {}
    version = int(opened.version())
    while unknown and version >= 0 and (actions := read_commit(tables.location, table, version)) is not None:
        metadata: Mapping[str, str] | None = next(
            (one["metaData"] for one in actions if one.get("metaData")), None
        )
        if metadata is not None:
            columns = columns_of(metadata)
            for name in unknown - columns.keys():
                unknown.discard(name)
            adders |= dict.fromkeys(unknown, not is_of_a_writer(actions))
        version -= 1
    found |= {name for name, is_foreign in adders.items() if is_foreign}
    return known | found


def remember_users_columns(tables: OpenTables, table: str, names: Collection[str]) -> bool:
    """Record columns of others in the table's property, and return whether one of them was not there yet."""
    known = users_columns_in(tables.open(table).metadata().configuration)
    if set(names) <= set(known):
        return False
    tables.set_properties(table, {USERS_COLUMNS_PROPERTY: json.dumps(sorted({*known, *names}))})
    return True
