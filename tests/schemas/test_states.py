"""The words that tables use as data: they never change, and stand in one module."""

import ast
import re
from enum import StrEnum

import pytest

from schemas import states
from tests import house

ENUMS = [one for one in vars(states).values() if isinstance(one, type) and issubclass(one, StrEnum)][1:]

WRITTEN = {
    "SpaceState": {"present", "described", "dropped", "refused"},
    "SpaceEvent": {"defined", "truncated", "dropped", "renewed", "held"},
    "RowState": {"committed", "rolled_back", "local"},
    "RowMove": {"received", "collected"},
    "VersionState": {"present", "deleted", "unfit", "removed"},
    "ConflictKind": {"key", "secondary", "doubled"},
    "ChangedSide": {"winner", "loser", "both"},
    "GapKind": {"missing", "divergence"},
    "GapState": {"open", "skipped", "filled", "bridged", "healed"},
    "RequestKind": {"forget", "backfill", "snapshot", "heal", "rebuild", "swap", "maintenance", "conflicts"},
    "RequestState": {"asked", "done", "failed"},
}
"""What stands in the tables of existing warehouses."""

WORDS = {word for words in WRITTEN.values() for word in words}
COLUMNS = {"state", "kind", "moved"}
IN_SQL = re.compile(rf"\b(?:{'|'.join(COLUMNS)})\s*(?:=|<>|!=|IN|LIKE)\s*\(?\s*'(?:{'|'.join(WORDS)})\b")


def test_the_values_are_those_of_existing_warehouses() -> None:
    assert {one.__name__: {member.value for member in one} for one in ENUMS} == WRITTEN
    assert states.refused_state("why") == "refused: why"
    assert states.HELD_PREFIX == "its rows are held, the table stays as it is"


@pytest.mark.parametrize("reason", ["", "why", "refused: twice"])
def test_a_refusal_is_read_as_it_was_written(reason: str) -> None:
    assert states.refusal_reason(states.refused_state(reason)) == reason


@pytest.mark.parametrize("state", ["present", "described", "dropped", "refused", "is refused: no"])
def test_other_states_are_no_refusals(state: str) -> None:
    assert states.refusal_reason(state) is None


def column_of(node: ast.expr) -> str | None:
    """Return the column that an expression reads: `row["state"]` or `gap.state`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return None


def literals(tree: ast.AST) -> list[str]:
    """Return the words that a module compares with a column, as literals."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += IN_SQL.findall(node.value)
        if isinstance(node, ast.Compare) and any(
            column_of(one) in COLUMNS for one in (node.left, *node.comparators)
        ):
            constants = [one for side in (node.left, *node.comparators) for one in ast.walk(side)]
            found += [str(c.value) for c in constants if isinstance(c, ast.Constant) and c.value in WORDS]
    return found


def test_no_other_module_spells_them() -> None:
    modules = house.modules().values()
    assert {one.name: words for one in modules if (words := literals(one.tree))} == {}


@pytest.mark.parametrize(
    "source",
    [
        'row["state"] == "open"',
        'x.kind in ("key", "other")',
        "sql = \"WHERE state = 'present'\"",
        "f\"{a} WHERE kind IN ('key')\"",
    ],
)
def test_a_literal_would_be_found(source: str) -> None:
    assert literals(ast.parse(source)) != []
