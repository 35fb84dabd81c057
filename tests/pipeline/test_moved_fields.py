"""A format that gives the fields of tuples other names changes the columns of all rows, also of those not written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.written import FIELDS, Node, replicasets_of
from tests.pipeline.deployment import Deployment

ID, NAME, VALUE, UPDATED = FIELDS


def rows_of(deployment: Deployment, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.get(name) for name in columns) for row in deployment.rows("people"))


@pytest.mark.parametrize("is_along", [False, True], ids=["in one batch", "in a batch of its own"])
@pytest.mark.parametrize(
    ("fields", "columns", "rows"),
    [
        ([("updated", "unsigned"), NAME, VALUE, ("id", "unsigned")], ("id", "updated"), [(7, 1), (8, 2)]),
        ([ID, VALUE, ("name", "integer"), UPDATED], ("id", "value", "name"), [(1, "a", 5), (2, "b", 6)]),
    ],
    ids=["two fields of one type", "two fields of different types"],
)
def test_fields_that_exchange_their_names(
    tmp_path: Path,
    fields: Sequence[tuple[str, str]],
    columns: tuple[str, ...],
    rows: list[tuple[Any, ...]],
    is_along: bool,
) -> None:
    node = Node(tmp_path, "a1").define(600, "people").put(600, 1, "a", 5, 7).put(600, 2, "b", 6, 8)
    if fields[1] == VALUE:
        fields = [ID, ("value", "string"), ("name", "integer"), UPDATED]
    made = Deployment.of(tmp_path, node)
    if is_along:
        node.close()
        made.run()
    node.redefine(600, "people", fields).close()
    made.run()
    assert rows_of(made, *columns) == rows


@pytest.mark.parametrize("is_masked", [False, True], ids=["plain", "masked"])
def test_fields_that_two_replicasets_add_one_after_the_other(tmp_path: Path, is_masked: bool) -> None:
    """The second one adds no column to the table, and its rows have the values in `_extra` until then."""
    a, b = (Node(tmp_path, name).define(600, "people", [ID]) for name in ("a1", "b1"))
    a.put(600, 1, "a", 5, 7).close()
    b.put(600, 2, "b", 6, 8).put(600, 3).close()
    paths = {one.path.name: one.path for one in (a, b)}
    masks = {"masks": {"people": {"updated": "drop"}}} if is_masked else {}
    made = Deployment(tmp_path, paths, replicasets_of("a1", "b1"), spaces=masks)
    made.run()
    a.redefine(600, "people", [ID, NAME, VALUE, UPDATED]).close()
    made.run()
    assert rows_of(made, "id", "name", "value") == [(1, "a", 5), (2, None, None), (3, None, None)]
    b.redefine(600, "people", [ID, NAME, VALUE, UPDATED]).close()
    made.run()
    assert rows_of(made, "id", "name", "value") == [(1, "a", 5), (2, "b", 6), (3, None, None)]
    exact = made.rows("_exact_people" if is_masked else "people")
    assert [row["_extra"] for row in exact] == [None, None, None]


def test_a_name_that_one_of_two_replicasets_gives_up(tmp_path: Path) -> None:
    a, b = (Node(tmp_path, name).define(600, "people") for name in ("a1", "b1"))
    a.put(600, 1, "a", 5, 7).close()
    b.put(600, 2, "b", 6, 8)
    made = Deployment.aggregated(tmp_path, a, b)
    a.redefine(600, "people", [ID, NAME, ("amount", "integer"), UPDATED]).close()
    made.run()
    assert rows_of(made, "id", "value", "amount") == [(1, None, 5), (2, 6, None)]
