"""docs/checks.md lists the names of all findings with a level above `ok`, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from observe.doctor import findings
from observe.doctor.masters import ADVICE

FOLDER = Path(findings.__file__).parent
DOCS = Path(__file__).parents[3] / "docs" / "checks.md"


def names_in_code() -> set[str]:
    """Return the names that are passed to `warn` and `fail`, directly or in a variable `name`."""
    found = set(ADVICE)
    for file in set(FOLDER.glob("*.py")) - {Path(findings.__file__)}:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("warn", "fail"):
                found |= words(node.args[0]) if node.args else set()
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "name":
                found |= words(node.value)
    return found


def words(node: ast.AST) -> set[str]:
    """Return the string constants below a node."""
    constants = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    return {one for one in constants if isinstance(one, str)}


def test_the_docs_list_each_name() -> None:
    section = DOCS.read_text().partition("\n## Before a run\n")[2].partition("\nNot checked:")[0]
    rows = (line.split("|")[2] for line in section.splitlines() if line.startswith("| ") and "`" in line)
    listed = {name for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row)}
    assert listed == names_in_code()
