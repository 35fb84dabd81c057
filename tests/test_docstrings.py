"""Docstrings in NumPy's form describe only parameters, attributes and fields that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house import modules

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_PARAMETERS = re.compile(r"^Parameters\n-+\n(.*?)(?=\n\n?[A-Z]\w+\n---|\Z)", re.MULTILINE | re.DOTALL)
_NAMES = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: : .+)?")


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    own = function.args
    named = {one.arg for one in (*own.posonlyargs, *own.args, *own.kwonlyargs)}
    return named | {one.arg for one in (own.vararg, own.kwarg) if one is not None}


def names_in(node: Documented) -> set[str]:
    """Return the arguments of a function, or the fields of a class and the arguments of its constructor."""
    if not isinstance(node, ast.ClassDef):
        return arguments(node)
    found: set[str] = set()
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found.add(statement.target.id)
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            found |= arguments(statement)
    return found


def faults(source: str) -> Iterator[str]:
    """Yield what is wrong with the sections `Parameters` of a module's docstrings."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Documented):
            continue
        section = _PARAMETERS.search(ast.get_docstring(node) or "")
        if section is None:
            continue
        for line in section[1].splitlines():
            head = _NAMES.fullmatch(line)
            if head is not None:
                described = {name.lstrip("*") for name in head[1].split(", ")}
                if not described <= names_in(node):
                    yield f"{node.name} has no {', '.join(sorted(described - names_in(node)))}"
            elif line and not line.startswith(" "):
                yield f"{node.name}: {line!r} is no name of a parameter"


def test_described_parameters_exist() -> None:
    found = {name: list(faults(module.text)) for name, module in modules().items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ("one : int\n        Text.", 0),
        ("one, *rest : int", 0),
        ("other : int", 1),
        ("The number of things.\n        Text.", 1),
        ("one : int\n\n    Some more text.", 1),
    ],
)
def test_a_wrong_section_would_be_found(described: str, expected: int) -> None:
    text = (
        f'def f(one, *rest):\n    """Do it.\n\n    Parameters\n    ----------\n    {described}\n\n    """\n'
    )
    assert len(list(faults(text))) == expected
