"""Cleaning as a whole: conflicts and epochs, and a process that ends after any step of it."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from config.retention import Retention
from pipeline.commit.epoch import commit_epoch
from pipeline.compaction import rewrite as rewrite_module
from pipeline.retention import cleaning as cleaning_module
from pipeline.write.system_rows import append_rows, write_system_rows
from schemas.states import ConflictKind
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment
from tests.pipeline.retention import cleaned as cleaned_module
from tests.pipeline.retention.cleaned import ALL, DAY, S, cleaned, gone, planned
from warehouse.delta.commits import OpenTables
from warehouse.system_tables import epochs
from warehouse.system_tables.maintenance import first_readable_epoch

ALL_OF_IT = {"tombstones": 30, "changelog": 30, "conflicts": 30, "epochs": 30}


def contended(folder: Path) -> Deployment:
    """Return tables in which two replicasets had a key, after four batches; all is old."""
    nodes = [Node(folder, name).define(S, "s") for name in ("a1", "b1")]
    for node in nodes:
        node.put(S, 1, node.path.name, 1, 1, at=1).close()
    sources = {node.path.name: node.path for node in nodes}
    deployment = Deployment(folder, sources, replicasets_of(*sources), policies=ALL)
    deployment.run()
    for number in (1, 2, 3):
        for node in nodes:
            node.put(S, number, node.path.name, 1, 1, at=number * DAY)
            node.delete(S, 1, at=number * DAY).put(S, 9, "", 1, 1, at=100 * number * DAY).close()
        deployment.run()
    return deployment


def numbers(deployment: Deployment) -> list[int]:
    return sorted(row["epoch"] for row in deployment.rows("_epochs", ["epoch"]))


def test_conflicts_go_but_those_of_secondary_indexes(tmp_path: Path) -> None:
    deployment = contended(tmp_path)
    with deployment.writer() as (warehouse, writer):
        row = {"epoch": writer.state.epoch, "space": "s", "key": b"", "kind": ConflictKind.SECONDARY}
        versions = {"_conflicts": append_rows(warehouse.open_tables, "_conflicts", [row])}
        commit_epoch(warehouse.open_tables, writer.state, versions, ("validation", 0))
    count = len(deployment.rows("_conflicts", ["key"]))
    assert gone(planned(deployment, days=29, conflicts=30)) == {}
    assert gone(cleaned(deployment, conflicts=30)) == {"_conflicts": count - 1}
    assert [row["kind"] for row in deployment.rows("_conflicts", ["kind"])] == [ConflictKind.SECONDARY]


def test_epochs_go_but_the_newest_and_the_last_of_each_stream(tmp_path: Path) -> None:
    deployment = contended(tmp_path)
    assert numbers(deployment) == [0, 1, 2, 3]
    cleaned(deployment, conflicts=1)
    assert numbers(deployment) == [0, 1, 2, 3, 4], "an epoch that is no batch of the stream"
    assert gone(planned(deployment, days=29, epochs=30)) == {}
    assert gone(cleaned(deployment, epochs=30)) == {"_epochs": 3}
    assert numbers(deployment) == [3, 4]
    with deployment.writer() as (warehouse, writer):
        assert writer.state.epoch == 4
        assert deployment.batches - 1 in epochs.end_offsets(warehouse, "test"), "Spark may repeat it"


def test_epochs_stay_as_long_as_they_are_readable(tmp_path: Path) -> None:
    deployment = contended(tmp_path)
    assert gone(planned(deployment, days=20, keep_days=30, epochs=10)) == {}
    assert gone(planned(deployment, days=31, keep_days=30, epochs=10)) == {"_epochs": 3}
    now = datetime.now(UTC) + timedelta(days=31)
    committed = {row["epoch"]: row["committed_at"] for row in deployment.rows("_epochs")}
    first = first_readable_epoch(committed, now - timedelta(days=30))
    cleaned(deployment, days=31, keep_days=30, epochs=10)
    assert first in numbers(deployment)


def test_nothing_goes_by_default(tmp_path: Path) -> None:
    assert gone(planned(contended(tmp_path))) == {}
    assert Retention().epochs is None


class KilledError(Exception):
    """Stands for the end of the process."""


def contents(deployment: Deployment) -> dict[str, Any]:
    names = ("s", "_versions", "_changelog", "_conflicts", "_pending", "_vclock", "_schema", "_gaps")
    volatile = {"cleaned_at", "committed_at"}

    def shown(row: Mapping[str, Any]) -> str:
        return str([(name, value) for name, value in sorted(row.items()) if name not in volatile])

    # The aggregator's own rows have its uuid, which each deployment makes.
    found: dict[str, Any] = {
        name: sorted(shown(row) for row in deployment.rows(name) if row.get("replicaset_id") != 0)
        for name in names
    }
    found["_retention"] = sorted(
        (row["table"], row["rows"], row["lsn"]) for row in deployment.rows("_retention")
    )
    return found


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Let the process end after so many writes of a cleaning: files, commits, the epoch."""
    done: list[str] = []

    def dies(name: str, real: Any) -> Any:
        def one(*arguments: Any, **named: Any) -> Any:
            found = real(*arguments, **named)
            done.append(" ".join([name, *(one for one in arguments[1:2] if isinstance(one, str))]))
            if len(done) == step:
                raise KilledError(name)
            return found

        return one

    monkeypatch.setattr(rewrite_module, "write_system_rows", dies("file", write_system_rows))
    monkeypatch.setattr(OpenTables, "commit", dies("commit", OpenTables.commit))
    monkeypatch.setattr(cleaning_module, "append_rows", dies("_retention", append_rows))
    monkeypatch.setattr(cleaned_module, "commit_epoch", dies("epoch", commit_epoch))
    return done


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_a_process_that_ends_after_any_step(tmp_path: Path, stride: int) -> None:
    """The next start rolls back what no epoch names, the next cleaning does the rest; both end in the same tables."""
    whole = contended(tmp_path / "whole")
    cleaned(whole, **ALL_OF_IT)
    wanted = contents(whole)
    assert {one[0] for one in wanted["_retention"]} == {"_changelog", "_conflicts", "_versions"}
    step, steps = 1, 99
    while step < steps:
        deployment = contended(tmp_path / str(step))
        before = contents(deployment)
        with pytest.MonkeyPatch.context() as patch:
            done = killed_at(patch, step)
            try:
                cleaned(deployment, **ALL_OF_IT)
                steps = step
            except KilledError:
                pass
        with deployment.writer() as (warehouse, _):
            epochs.roll_back(warehouse, epochs.last(warehouse))
        if "commit _epochs" not in done:
            assert contents(deployment) == before, done
        cleaned(deployment, **ALL_OF_IT)
        assert contents(deployment) == wanted, done
        # The number of an epoch that was rolled back is left out.
        assert numbers(deployment) in ([3, 4], [3, 5, 6]), done
        assert gone(planned(deployment, **ALL_OF_IT)) == {}
        step += stride
    assert step > 8, "not every step was tried"
