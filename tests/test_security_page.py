"""The threat model: each promise of its two pages names its test, and each test that they name exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = "\n".join((ROOT / "docs" / name).read_text() for name in ("security.md", "threats.md"))
NAMED = re.compile(r"`((?:tests/[\w/]+(?:\.py)?)|test_\w+\.py)(?: [^`]*)?`")
FILES = {path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}


def exists(name: str) -> bool:
    """Return whether there is a test of this path or this file name; a folder must have tests."""
    if "/" not in name:
        return any(path.name == name for path in FILES)
    if name.endswith(".py"):
        return (ROOT / name).exists()
    return any(Path(name) in path.parents for path in FILES)


def tables(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield each table: the paragraph before it, and the cells of its rows, the head first."""
    for found in re.finditer(r"((?:^.+\n)*)\n((?:^\|.*\n?)+)", text, re.MULTILINE):
        lines = found[2].splitlines()
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        yield found[1], [rows[0], *rows[2:]]


def unproven(text: str) -> list[str]:
    """Return the promises of a page that name no test: rows of tables, and what its list says cannot be done."""
    found, proven = [], ""
    for before, (head, *rows) in tables(text):
        if "promise" not in head:
            continue
        is_named_before = bool(NAMED.search(before)) and "test" not in head
        for row in rows:
            cells = dict(zip(head, row, strict=True))
            proven += cells["promise"] + "\n"
            test = cells.get("test", "")
            if not (is_named_before or NAMED.search(test) or test.startswith("the same")):
                found.append(cells["promise"])
    impossible = re.findall(
        r"^- (\*[^*]+\*)", text.partition("What it cannot do, as far as tests try:")[2], re.MULTILINE
    )
    return found + [one for one in impossible if one not in proven]


def test_each_promise_names_its_test() -> None:
    assert sum("promise" in head for _, (head, *_) in tables(PAGES)) >= 6
    assert unproven(PAGES) == []


def test_each_test_that_is_named_exists() -> None:
    names = NAMED.findall(PAGES)
    assert len(names) > 30
    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("a\n\n| promise | test |\n|---|---|\n| x | `test_answers.py` |\n| y | none |\n", ["y"]),
        ("in `tests/fuzz`:\n\n| promise | bound |\n|---|---|\n| x | 5 |\n", []),
        ("before:\n\n| promise | bound |\n|---|---|\n| x | 5 |\n", ["x"]),
        ("What it cannot do, as far as tests try:\n\n- *Fly*: no.\n", ["*Fly*"]),
    ],
)
def test_a_promise_without_a_test_is_seen(text: str, missing: list[str]) -> None:
    assert unproven(text) == missing


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        ("tests/fuzz", True),
        ("tests/nothing", False),
        ("test_answers.py", True),
        ("test_nothing.py", False),
        ("tests/test_security_page.py", True),
        ("tests/test_nothing.py", False),
    ],
)
def test_a_test_that_is_not_there_is_seen(name: str, is_there: bool) -> None:
    assert exists(name) == is_there
