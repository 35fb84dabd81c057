"""Expectations of the aggregator's own tables.

`_changelog` is checked by origin (`observe.validation.origins`), the tables of spaces in `observe.validation.spaces`.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pyarrow as pa

from observe.validation.check import Check, CheckFacts, OpenTable, Rows, readable_table
from pipeline.state import State
from schemas.states import ConflictKind, GapState, VersionState

GLOBAL_ID_COLUMNS = {
    "_applier_map": ("global_id",),
    "_vclock": ("global_id",),
    "_versions": ("global_id",),
    "_conflicts": ("winner_global_id", "loser_global_id"),
    "_quarantine": ("global_id",),
    "_retention": ("global_id",),
}
"""By table: its columns with global ids, which are null in rows that name no instance."""

PAST_TIME_COLUMNS = {
    "_cluster": ("first_seen",),
    "_versions": ("timestamp", "created"),
    "_conflicts": ("winner_timestamp", "loser_timestamp"),
    "_epochs": ("committed_at",),
    "_retention": ("cleaned_at",),
}
"""By table: its columns with times that must not be in the future."""


def _state_values(states: type[StrEnum]) -> tuple[str, ...]:
    return tuple(state.value for state in states)


ALLOWED_STATES = {
    "_versions": ("state", _state_values(VersionState)),
    "_gaps": ("state", _state_values(GapState)),
    "_conflicts": ("kind", _state_values(ConflictKind)),
}
"""By table: the name of a column, and all values that the aggregator writes into it."""

NEVER_NULL_COLUMNS = {
    "_cluster": ("global_id", "uuid", "replicaset_id"),
    "_applier_map": ("replicaset_id", "local_id", "global_id", "since_lsn"),
    "_vclock": ("replicaset_id", "lsn"),
    "_versions": ("space", "key", "replicaset_id"),
    "_conflicts": ("space", "key"),
    "_quarantine": ("reason",),
    "_pending": ("reason",),
    "_gaps": ("replicaset_id", "kind"),
    "_vshard": ("epoch", "replicaset_id", "bucket_id"),
    "_epochs": ("epoch", "versions", "vclock"),
    "_schema": ("replicaset_id", "space_id", "name", "state", "space_tuple"),
    "_retention": ("epoch", "cleaned_at", "table", "rows"),
}
"""By table: its columns that are never null."""

KEY_COLUMNS = {
    "_cluster": ("uuid",),
    "_applier_map": ("replicaset_id", "local_id", "global_id"),
    "_vclock": ("replicaset_id", "global_id", "local_id"),
    "_versions": ("space", "key", "replicaset_id"),
    "_conflicts": ("space", "key", "epoch"),
    "_quarantine": ("space", "file", "position"),
    "_pending": ("source", "file", "position"),
    "_gaps": ("replicaset_id", "local_id", "first_lsn", "last_lsn"),
    "_vshard": ("epoch", "replicaset_id", "bucket_id"),
    "_epochs": ("epoch",),
    "_schema": ("replicaset_id", "space_id", "name"),
    "_retention": ("epoch", "table", "replicaset_id", "global_id", "local_id"),
}
"""By table: the columns that identify a row in examples."""


def expect_known_ids(column: str, facts: CheckFacts) -> Any:
    """Return the expectation that all global ids of a column are in `_cluster`."""
    import great_expectations.expectations as gxe

    return gxe.ExpectColumnValuesToBeInSet(
        column=column, value_set=list(facts.global_ids), description=f"{column} is known in _cluster"
    )


def expect_not_null(column: str) -> Any:
    """Return the expectation that a column has no null."""
    import great_expectations.expectations as gxe

    return gxe.ExpectColumnValuesToNotBeNull(column=column, description=f"{column} is never null")


def expect_unique(column: str, description: str) -> Any:
    """Return the expectation that a column has no value twice."""
    import great_expectations.expectations as gxe

    return gxe.ExpectColumnValuesToBeUnique(column=column, description=description)


def expect_not_in_future(column: str, facts: CheckFacts) -> list[Any]:
    """Return the expectation that no time of a column is in the future; an empty list if times are not checked."""
    import great_expectations.expectations as gxe

    if facts.latest_allowed_time is None:
        return []
    text = f"{column} is not of the future (after {facts.latest_allowed_time:%Y-%m-%d %H:%M:%S} UTC)"
    return [
        gxe.ExpectColumnValuesToBeBetween(
            column=column, max_value=facts.latest_allowed_time, description=text
        )
    ]


def system_table_checks(open_table: OpenTable, _state: State, facts: CheckFacts) -> Iterator[Check]:
    """Yield the checks of the aggregator's own tables."""
    import great_expectations.expectations as gxe

    for table, key_columns in KEY_COLUMNS.items():
        expected = [expect_not_null(column) for column in NEVER_NULL_COLUMNS[table]]
        expected += [expect_known_ids(column, facts) for column in GLOBAL_ID_COLUMNS.get(table, ())]
        expected += [
            one for column in PAST_TIME_COLUMNS.get(table, ()) for one in expect_not_in_future(column, facts)
        ]
        if table in ALLOWED_STATES:
            column, allowed = ALLOWED_STATES[table]
            text = f"{column} is one of {', '.join(allowed)}"
            expected.append(
                gxe.ExpectColumnValuesToBeInSet(column=column, value_set=list(allowed), description=text)
            )
        if table == "_cluster":
            rows: Rows = readable_table(_with_current_ids(open_table.rows(table)))
            expected += _unique_instance_expectations()
        else:
            rows = open_table.readable(table)
        if table == "_epochs":
            expected.append(expect_unique("epoch", "no two rows have one epoch"))
        yield Check(table, rows, tuple(expected), key_columns)


def _with_current_ids(rows: pa.Table) -> pa.Table:
    """Return the rows of `_cluster` with a column with `<replicaset id>.<replica id>` of each instance."""
    ids = [
        None
        if row["expelled_at"] is not None or row["local_id"] is None
        else f"{row['replicaset_id']}.{row['local_id']}"
        for row in rows.select(["expelled_at", "local_id", "replicaset_id"]).to_pylist()
    ]
    return rows.append_column("current_id", pa.array(ids, pa.string()))


def _unique_instance_expectations() -> list[Any]:
    return [
        expect_unique("uuid", "no uuid has two global ids"),
        expect_unique("global_id", "no global id is two instances'"),
        expect_unique("current_id", "no id of a replicaset is two instances' at once"),
    ]
