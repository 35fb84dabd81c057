"""Warehouses that version 1 wrote: the job continues from them, and ends where it would have ended alone.

`first_engine`: the recording of 2.6.0 up to its middle. `first_engine_moves`: a batch of `test_moves`, with rows that
waited behind a rename and a changed key.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from schemas.layout import MISFITS_COLUMN
from schemas.names import table_name
from tests.jobs.deployment import Deployment
from tests.jobs.test_moves import check
from tests.jobs.written import replicasets_of
from tests.truth import own

pytestmark = pytest.mark.spark

WAREHOUSES = Path(__file__).resolve().parent.parent / "warehouses"
SPACES = (
    "accounts",
    "counters",
    "docs",
    "ledger",
    "to_trunc",
    "again",
    "rekeyed",
    "keys_number",
    "renamed",
    "auto",
)
SETTINGS: dict[str, Any] = {
    "policies": {
        "spaces": {
            "accounts": {"sequence": ["updated"]},
            "counters": {"policy": "sum", "columns": ["value"]},
        }
    },
    "spaces": {
        "include": list(SPACES),
        "masks": {"accounts": {"email": "hash", "name": "drop"}},
        "mask_key_env": "MASK_KEY",
    },
}


def unpacked(name: str, folder: Path) -> None:
    shutil.unpack_archive(WAREHOUSES / f"{name}.tar.gz", folder)


def held(deployment: Deployment) -> dict[str, list[str]]:
    """Return the rows of all tables of spaces as texts; ids were allocated in another order."""
    uuids = {row["global_id"]: row["uuid"] for row in deployment.rows("_cluster")}
    names = [table_name(space) for space in SPACES]
    found = {name: deployment.rows(name) for name in [*names, *(f"_exact_{name}" for name in names)]}

    def text(row: dict[str, Any]) -> str:
        return str(sorted({**row, "_global_id": uuids[row["_global_id"]]}.items()))

    return {name: sorted(map(text, rows)) for name, rows in found.items() if rows}


@pytest.mark.usefixtures("spark")
def test_the_job_continues_from_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_KEY", "0123456789abcdef0123")
    sources = {name: own().directory(name) for name in ("a1", "b1")}
    unpacked("first_engine", tmp_path / "old")
    old = Deployment(tmp_path / "old", sources, **SETTINGS)
    old.database = "aggregator"
    before = held(old)
    epochs = len(old.rows("_epochs", ["epoch"]))
    assert before
    assert epochs
    assert not any(MISFITS_COLUMN in names for names in columns_of(old).values())
    old.run()
    assert len(old.rows("_epochs", ["epoch"])) == epochs + 2
    assert old.rows("_pending")  # a log of b1 was missing when version 1 ran, and is there now
    old.forget_checkpoint()
    old.run()
    assert not old.rows("_pending")
    new = Deployment(tmp_path / "new", sources, **SETTINGS)
    new.run()
    assert before != held(old)
    assert held(old) == held(new)
    assert lsns(old) == lsns(new)
    # What masks hide is another thing since then: the table that readers see was written again, once.
    assert [row["query_id"] for row in old.rows("_epochs")].count("masked") == 1
    assert columns_of(old) == columns_of(new)


def columns_of(deployment: Deployment) -> dict[str, set[str]]:
    """Return the columns of the tables of spaces: old tables must have those of new ones."""
    names = [table_name(space) for space in SPACES]
    tables = [*names, *(f"_exact_{name}" for name in names)]
    return {name: set(rows[0]) for name in tables if (rows := deployment.rows(name))}


def lsns(deployment: Deployment) -> list[tuple[str, int, str]]:
    """Return the settled rows of the log, by uuid."""
    uuids = {row["global_id"]: row["uuid"] for row in deployment.rows("_cluster") if row["replicaset_id"]}
    found = deployment.rows("_changelog", ["global_id", "lsn", "state"])
    return sorted(
        (uuids[row["global_id"]], row["lsn"], row["state"]) for row in found if row["global_id"] in uuids
    )


@pytest.mark.usefixtures("spark")
def test_rows_that_waited_behind_a_rename_are_released(tmp_path: Path) -> None:
    unpacked("first_engine_moves", tmp_path)
    sources = {name: tmp_path / "sources" / name for name in ("a1", "b1")}
    deployment = Deployment(tmp_path, sources, replicasets_of(*sources))
    deployment.database = "aggregator"
    assert len(deployment.rows("_pending")) == 4
    deployment.run()
    check(deployment)
    assert [row["query_id"] for row in deployment.rows("_epochs")].count("released") == 1
    deployment.run()
    check(deployment)
    assert [row["query_id"] for row in deployment.rows("_epochs")].count("released") == 1
