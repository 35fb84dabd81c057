"""What a commit of somebody else does is read from its actions; the most that it does counts."""

from itertools import permutations
from typing import Any

import pytest

from warehouse.delta.foreign_commits import Effect, foreign_commit

COLUMNS = {"id": "long"}


def metadata(*names: str, nullable: str = "true") -> dict[str, Any]:
    fields = ", ".join(f'{{"name": "{name}", "type": "long", "nullable": {nullable}}}' for name in names)
    return {"metaData": {"schemaString": f'{{"type": "struct", "fields": [{fields}]}}'}}


MOVED, CHANGED = ({"add": {"path": "p", "dataChange": change}} for change in (False, True))
REMOVED = {"remove": {"path": "p"}}
PROTOCOL = {"protocol": {"minReaderVersion": 3}}


@pytest.mark.parametrize(
    ("operation", "actions", "effect"),
    [
        ("VACUUM START", [], Effect.NOTHING),
        ("OPTIMIZE", [MOVED], Effect.FILES),
        ("SET TBLPROPERTIES", [metadata("id")], Effect.METADATA),
        ("ADD COLUMNS", [metadata("id", "note")], Effect.OWN_COLUMN),
        ("ADD COLUMNS", [metadata("id", "note", nullable="false")], Effect.COLUMNS),
        ("RENAME COLUMN", [metadata("ident")], Effect.COLUMNS),
        ("DROP COLUMNS", [metadata("note")], Effect.COLUMNS),
        ("ADD FEATURE", [PROTOCOL], Effect.PROTOCOL),
        ("DELETE", [MOVED, REMOVED], Effect.ROWS),
        ("WRITE", [CHANGED, PROTOCOL, metadata("id")], Effect.ROWS),
        ("RESTORE", [MOVED, PROTOCOL, metadata("id")], Effect.RESTORED),
        ("CREATE OR REPLACE TABLE", [REMOVED, metadata("other"), PROTOCOL], Effect.COLUMNS),
    ],
)
def test_the_most_that_a_commit_does_counts(
    operation: str, actions: list[dict[str, Any]], effect: Effect
) -> None:
    info = {"commitInfo": {"operation": operation, "timestamp": 1795664826723, "userName": "ann"}}
    for order in permutations(actions):
        found = foreign_commit(9, [info, *order], COLUMNS)
        assert found.effect is effect
        harmful = {Effect.ROWS, Effect.RESTORED, Effect.COLUMNS}
        assert found.effect.is_harmless is (effect not in harmful)
        assert str(found).startswith(
            f"version 9, {operation} at 2026-11-26 03:47:06 UTC by ann, which changes"
        )
