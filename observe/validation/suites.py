"""Expectations of the aggregator's own tables.

`_changelog` is checked by origin (`observe.validation.origins`), the tables of spaces in `observe.validation.spaces`.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from observe.validation.check import Check, CheckFacts, OpenTable, Rows, readable_table
from pipeline.state import State
from schemas.tables import OWN_TABLES


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

    for table, own in OWN_TABLES.items():
        if not own.keys:
            continue
        expected = [expect_not_null(column) for column in own.never_null]
        expected += [expect_known_ids(column, facts) for column in own.global_ids]
        expected += [one for column in own.past_times for one in expect_not_in_future(column, facts)]
        if own.states is not None:
            column, states = own.states
            allowed = [state.value for state in states]
            text = f"{column} is one of {', '.join(allowed)}"
            expected.append(
                gxe.ExpectColumnValuesToBeInSet(column=column, value_set=allowed, description=text)
            )
        if table == "_cluster":
            rows: Rows = readable_table(_with_current_ids(open_table.rows(table)))
            expected += _unique_instance_expectations()
        else:
            rows = open_table.readable(table)
        if table == "_epochs":
            expected.append(expect_unique("epoch", "no two rows have one epoch"))
        yield Check(table, rows, tuple(expected), own.keys)


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
