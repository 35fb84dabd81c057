"""Others commit to tables while batches run, and change no rows: it makes no difference."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.lookup import key_copies
from tests.pipeline.deployment import Deployment, rows_of_tables
from tests.pipeline.test_deletion_vectors import MASKED, MODES, cuts, rows_without_vectors, sources
from tests.pipeline.test_executors import POLICIES
from tests.soaked import partly_soaked
from warehouse.delta.commits import OpenTables

Act = Callable[[DeltaTable], object]

HARMLESS: Mapping[str, Act] = {
    "compact": lambda table: table.optimize.compact(),
    "z-order": lambda table: table.optimize.z_order([table.schema().fields[0].name]),
    "properties": lambda table: table.alter.set_table_properties({"note": "x"}, raise_if_not_exists=False),
    "comment": lambda table: table.alter.set_table_description("a table"),
    "change data feed": lambda table: table.alter.set_table_properties(
        {"delta.enableChangeDataFeed": "true"}
    ),
    "vacuum": lambda table: table.vacuum(dry_run=False),
    "checkpoint": lambda table: table.create_checkpoint(),
}


@contextmanager
def disturbed(monkeypatch: pytest.MonkeyPatch, act: Callable[[str, DeltaTable], object]) -> Iterator[None]:
    """Inside, somebody else acts on a table just before each commit of files to it."""
    commit = OpenTables.commit

    def disturbed_commit(self: OpenTables, table: str, *arguments: Any, **named: Any) -> int:
        if any(arguments):
            act(table, DeltaTable(self.location.uri(table)))
        return commit(self, table, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(OpenTables, "commit", disturbed_commit)
        yield


def deployment(folder: Path, mode: str) -> Deployment:
    return Deployment(folder, sources(), **POLICIES[MASKED], **MODES[mode])


def set_up(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("MASK_KEY", "0123456789abcdef0123")
    patch.setattr(key_copies, "SMALL_BYTES", 2_000)


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(monkeypatch)


@pytest.mark.parametrize("mode", partly_soaked(["always"], ["never"]))
@pytest.mark.parametrize("seed", partly_soaked(range(1), range(1, 100)))
def test_others_who_change_no_rows_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, seed: int
) -> None:
    draw = random.Random(seed)

    def act(table: str, opened: DeltaTable) -> None:
        if not table.startswith("_") or table.startswith("_exact") or draw.random() < 0.1:
            HARMLESS[draw.choice(list(HARMLESS))](opened)

    beside = deployment(tmp_path, mode)
    with disturbed(monkeypatch, act):
        beside.run(cuts(random.Random(seed)))
    wanted, found = rows_without_vectors(MASKED, seed), rows_of_tables(beside)
    for table in wanted:
        assert found[table] == wanted[table], table
