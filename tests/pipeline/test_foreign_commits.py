"""Others commit to tables while batches run: moved rows change nothing, and changed rows are refused by name."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.lookup import key_copies
from schemas.errors import ForeignChangeError
from tests.pipeline.deployment import Deployment, contents
from tests.pipeline.test_deletion_vectors import MODES, cuts, sources
from tests.pipeline.test_executors import POLICIES
from tests.soaked import partly_soaked
from warehouse.delta.commits import OpenTables

Act = Callable[[DeltaTable], object]

HARMLESS: Mapping[str, Act] = {
    "compact": lambda table: table.optimize.compact(),
    "properties": lambda table: table.alter.set_table_properties({"note": "x"}, raise_if_not_exists=False),
    "comment": lambda table: table.alter.set_table_description("a table"),
    "vacuum": lambda table: table.vacuum(dry_run=False),
    "checkpoint": lambda table: table.create_checkpoint(),
}

HARMFUL: Mapping[str, Act] = {
    "delete": lambda table: table.delete("id > 1100"),
    "update": lambda table: table.update(updates={"_lsn": "_lsn + 1"}, predicate="id > 1100"),
    "restore": lambda table: table.restore(0),
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


def rows_of(deployment: Deployment) -> dict[str, Counter[str]]:
    return {table: rows for table, rows in contents(deployment).items() if table != "_epochs"}


def deployment(folder: Path, mode: str) -> Deployment:
    return Deployment(folder, sources(), **POLICIES["by time, made tuples, masks"], **MODES[mode])


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_KEY", "0123456789abcdef0123")
    monkeypatch.setattr(key_copies, "SMALL_BYTES", 2_000)


@pytest.mark.parametrize("mode", ["always", "never"])
@pytest.mark.parametrize("seed", partly_soaked(range(1), range(1, 100)))
def test_others_who_change_no_rows_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, seed: int
) -> None:
    draw = random.Random(seed)

    def act(table: str, opened: DeltaTable) -> None:
        if not table.startswith("_") or table.startswith("_exact") or draw.random() < 0.1:
            HARMLESS[draw.choice(list(HARMLESS))](opened)

    alone, beside = deployment(tmp_path / "alone", mode), deployment(tmp_path / "beside", mode)
    alone.run(cuts(random.Random(seed)))
    with disturbed(monkeypatch, act):
        beside.run(cuts(random.Random(seed)))
    wanted, found = rows_of(alone), rows_of(beside)
    for table in wanted:
        assert found[table] == wanted[table], table


@pytest.mark.parametrize("mode", ["always", "never"])
@pytest.mark.parametrize("change", HARMFUL)
@pytest.mark.parametrize("when", ["between two batches", "between lookup and commit"])
def test_others_who_change_rows_are_named_and_taking_it_back_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, change: str, when: str
) -> None:
    sizes = [2_000, 2_000, 2_000, 5_000, 5_000, 10_000]
    alone, beside = deployment(tmp_path / "alone", mode), deployment(tmp_path / "beside", mode)
    alone.run(list(sizes))
    beside.run(sizes, batches=len(sizes))
    path = beside.folder / "warehouse" / "aggregator.db" / "_exact_accounts"
    before = DeltaTable(str(path)).version()
    named = r"somebody else has changed the table.*_exact_accounts"
    if when == "between two batches":
        HARMFUL[change](DeltaTable(str(path)))
        with pytest.raises(ForeignChangeError, match=named):
            beside.run()
    else:
        acted: list[object] = []

        def act(table: str, opened: DeltaTable) -> None:
            if table == "_exact_accounts" and not acted:
                acted.append(HARMFUL[change](opened))

        with disturbed(monkeypatch, act), pytest.raises(ForeignChangeError, match=named):
            beside.run()
    with pytest.raises(ForeignChangeError, match=named):
        beside.run()
    DeltaTable(str(path)).restore(before)
    beside.run()
    wanted, found = rows_of(alone), rows_of(beside)
    for table in wanted:
        assert found[table] == wanted[table], table
