"""docs/operation.md lists the names of all planned changes, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from observe.preview import changes

DOCS = Path(__file__).parents[3] / "docs" / "operation.md"
SETTINGS = {"policy_changed", "mask_changed", "setting_changed"}
"""Names that are passed in a variable."""


def names_in_code() -> set[str]:
    """Return the names that are passed to `PlannedChange`."""
    found = {name for _, name, _ in changes._TABLES.values()} | SETTINGS
    for node in ast.walk(ast.parse(Path(changes.__file__).read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "PlannedChange":
            name = node.args[1]
            if isinstance(name, ast.Constant):
                found.add(str(name.value))
    return found


def test_the_docs_list_each_name() -> None:
    whole = DOCS.read_text().partition("\n    aggregator plan --config FILE [--json]\n")[2]
    section = whole.partition("\nA run may divide")[0]
    rows = (line.split("|")[2] for line in section.splitlines() if line.startswith("| "))
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)} == names_in_code()
