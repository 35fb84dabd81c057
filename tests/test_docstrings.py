"""Docstrings are in Google's form: they describe only parameters that exist, and fields by strings under them."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.house import PHRASES_TO_AVOID, Module, duplicate_class_names, modules

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_ARGUMENTS = re.compile(r"^Args:\n(.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_NAMES = re.compile(r"    (\*{0,2}\w+(?:, \*{0,2}\w+)*): \S.*")
_NUMPY_RULE = re.compile(r"^-{3,}$", re.MULTILINE)


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    args = function.args
    named = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    return named | {arg.arg for arg in (args.vararg, args.kwarg) if arg is not None}


def names_in(node: Documented) -> set[str]:
    """Return the arguments of a function, or of the constructor that a class defines."""
    if not isinstance(node, ast.ClassDef):
        return arguments(node)
    constructors = (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
    return {name for constructor in constructors for name in arguments(constructor)}


def faults(source: str) -> Iterator[str]:
    """Yield what is wrong with the sections of a module's docstrings."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Documented):
            continue
        docstring = ast.get_docstring(node) or ""
        if _NUMPY_RULE.search(docstring):
            yield f"{node.name} has a section in NumPy's form"
        section = _ARGUMENTS.search(docstring)
        if section is None:
            continue
        for line in section[1].splitlines():
            head = _NAMES.fullmatch(line)
            if head is not None:
                described = {name.lstrip("*") for name in head[1].split(", ")}
                if not described <= names_in(node):
                    yield f"{node.name} has no {', '.join(sorted(described - names_in(node)))}"
            elif not line.startswith("        "):
                yield f"{node.name}: {line!r} is no name of a parameter with a text"


@cache
def product() -> dict[str, Module]:
    return modules()


def test_described_parameters_exist() -> None:
    found = {name: list(faults(module.text)) for name, module in product().items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_words_do_not_outgrow_the_code() -> None:
    words = sum(module.docstring_lines for module in product().values())
    lines = sum(module.text.count("\n") for module in product().values())
    assert words / lines < 0.17, "describe what a name does not say, once (CONTRIBUTING.md)"


def test_words_are_plain() -> None:
    docstrings = [text for module in product().values() for text in module.docstrings()]
    odd = [text for text in docstrings if PHRASES_TO_AVOID.search(text)]
    assert len(odd) / len(docstrings) <= 0.01, odd


def test_a_class_has_a_name_of_its_own() -> None:
    assert duplicate_class_names(product()) == []


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("Args:\n        one: Text\n            of two lines.", 0),
        ("Args:\n        one, *rest: Text.", 0),
        ("Args:\n        one: Text.\n\n    Raises:\n        ValueError: Text.", 0),
        ("Args:\n        other: Text.", 1),
        ("Args:\n        one:", 1),
        ("Args:\n        The number of things.", 1),
        ("Args:\n    one: Text.", 1),
        ("Parameters\n    ----------\n    one : int\n        Text.", 1),
    ],
)
def test_a_wrong_section_would_be_found(section: str, expected: int) -> None:
    text = f'def f(one, *rest):\n    """Do it.\n\n    {section}\n    """\n'
    assert len(list(faults(text))) == expected


def test_a_class_without_a_constructor_describes_its_fields_by_strings() -> None:
    text = 'class C:\n    """It.\n\n    Args:\n        size: Text.\n    """\n\n    size: int\n'
    assert list(faults(text)) == ["C has no size"]
