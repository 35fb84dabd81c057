"""Expectations of the aggregator's own tables.

`_changelog` is checked by origin (`observe.validation.origins`), the tables of spaces in `observe.validation.spaces`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from pyspark.sql import functions as F

from observe.validation.check import Check, CheckFacts, OpenTable, readable
from pipeline.state import State
from schemas.states import ConflictKind, GapState, VersionState

GLOBAL_IDS = {
    "_applier_map": ("global_id",),
    "_vclock": ("global_id",),
    "_versions": ("global_id",),
    "_conflicts": ("winner_global_id", "loser_global_id"),
    "_quarantine": ("global_id",),
    "_retention": ("global_id",),
}
"""Columns with global ids; null if the origin is unknown."""

TIMES = {
    "_cluster": ("first_seen",),
    "_versions": ("timestamp", "created"),
    "_conflicts": ("winner_timestamp", "loser_timestamp"),
    "_epochs": ("committed_at",),
    "_retention": ("cleaned_at",),
}


def _values(states: type[StrEnum]) -> tuple[str, ...]:
    return tuple(one.value for one in states)


STATES = {
    "_versions": ("state", _values(VersionState)),
    "_gaps": ("state", _values(GapState)),
    "_conflicts": ("kind", _values(ConflictKind)),
}
"""By table, a column and all values that the code writes into it."""

PRESENT = {
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

KEYS = {
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
    "_retention": ("epoch", "table", "replicaset_id", "global_id"),
}
"""By table, the columns that identify a row."""


def known_ids(column: str, facts: CheckFacts) -> Any:
    """Return the expectation that global ids are in `_cluster`."""
    import great_expectations.expectations as gxe

    return gxe.ExpectColumnValuesToBeInSet(
        column=column, value_set=list(facts.global_ids), description=f"{column} is known in _cluster"
    )


def present(column: str, where: str | None = None) -> Any:
    """Return the expectation that a column has no null, in rows that fulfil an SQL condition."""
    import great_expectations.expectations as gxe

    chosen = {} if where is None else {"row_condition": where, "condition_parser": "spark"}
    return gxe.ExpectColumnValuesToNotBeNull(column=column, description=f"{column} is never null", **chosen)


def unique(column: str, said: str) -> Any:
    """Return the expectation that a column has no value twice."""
    import great_expectations.expectations as gxe

    return gxe.ExpectColumnValuesToBeUnique(column=column, description=said)


def no_later(column: str, facts: CheckFacts) -> list[Any]:
    """Return the expectation that no time is in the future, if times are checked."""
    import great_expectations.expectations as gxe

    if facts.latest is None:
        return []
    said = f"{column} is not of the future (after {facts.latest:%Y-%m-%d %H:%M:%S} UTC)"
    return [gxe.ExpectColumnValuesToBeBetween(column=column, max_value=facts.latest, description=said)]


def system_checks(open_table: OpenTable, _state: State, facts: CheckFacts) -> Iterator[Check]:
    """Yield the checks of the aggregator's own tables."""
    import great_expectations.expectations as gxe

    for table, keys in KEYS.items():
        expected = [present(column) for column in PRESENT[table]]
        expected += [known_ids(column, facts) for column in GLOBAL_IDS.get(table, ())]
        expected += [one for column in TIMES.get(table, ()) for one in no_later(column, facts)]
        if table in STATES:
            column, allowed = STATES[table]
            said = f"{column} is one of {', '.join(allowed)}"
            expected.append(
                gxe.ExpectColumnValuesToBeInSet(column=column, value_set=list(allowed), description=said)
            )
        rows = readable(open_table(table))
        if table == "_cluster":
            rows, expected = rows.withColumn("held", _held()), [*expected, *_injective()]
        if table == "_epochs":
            expected.append(unique("epoch", "no two rows have one epoch"))
        yield Check(table, rows, tuple(expected), keys)


def _held() -> Any:
    """Return an instance's replicaset and replica id as one text; null if it was expelled, or has no id."""
    now = F.col("expelled_at").isNull() & F.col("local_id").isNotNull()
    return F.when(now, F.concat_ws(".", "replicaset_id", "local_id"))


def _injective() -> list[Any]:
    return [
        unique("uuid", "no uuid has two global ids"),
        unique("global_id", "no global id is two instances'"),
        unique("held", "no id of a replicaset is two instances' at once"),
    ]
