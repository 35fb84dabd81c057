"""What batches cost is told: by `status`, `doctor`, `plan`, metrics and the report page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.status import show
from observe.doctor.machine import check_machine, gather_machine
from observe.metrics.stream_metrics import StreamMetrics
from observe.planned_changes import planned_changes
from observe.report.facts import TableSize
from observe.report.page import render_page
from observe.write_costs import debt_problems, read_write_costs, written_text
from pipeline.commit.costs import COSTS_FILE, BatchCosts, store_costs, stored_costs
from pipeline.compaction.debt import CompactionDebt
from pipeline.lookup.copy_folder import KEPT_FREE_BYTES
from pipeline.lookup.key_copies import CopyCounts
from pipeline.preview import preview_next_run
from schemas.conditions import DEBT_BYTES
from schemas.tables import SYSTEM_TABLES
from tests.observe.report.test_page import facts
from tests.pipeline.deployment import Deployment
from tests.pipeline.test_deletion_vectors import MODES, sources

SIZES = [2_000, 2_000, 2_000, 5_000, 5_000, 10_000, *[20_000] * 20]
COSTS = BatchCosts(7, 100, 250, 30, 20, CopyCounts(3, 1), {"accounts": CompactionDebt(1000, 400, 5)})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Return a deployment whose tables have deletion vectors, a few batches before the end of its logs."""
    deployment = Deployment(tmp_path_factory.mktemp("made"), sources(), **MODES["always"])
    deployment.run(SIZES, batches=12)
    return deployment


def test_a_batch_counts_what_it_writes_and_how_it_finds_keys(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, sources(), **MODES["always"])
    tables = tmp_path / "warehouse" / "aggregator.db"

    def size(pattern: str) -> int:
        found = (path for path in tables.glob(pattern) if path.parent.name not in SYSTEM_TABLES)
        return sum(path.stat().st_size for path in found)

    total = BatchCosts()
    with deployment.writer() as (_, writer):
        for budget in SIZES:
            if not deployment.batch(writer, budget):
                continue
            one = writer.costs
            assert 0 <= one.changed_bytes <= one.data_bytes
            total = BatchCosts(
                one.epoch,
                total.changed_bytes + one.changed_bytes,
                total.data_bytes + one.data_bytes,
                total.vector_bytes + one.vector_bytes,
                total.compaction_bytes + one.compaction_bytes,
                CopyCounts.total([total.copies, one.copies]),
                one.debts,
            )
    assert total.data_bytes + total.compaction_bytes == size("*/part-*.parquet")
    assert 0 < total.vector_bytes < size("*/deletion_vector_*.bin")
    assert total.copies.used > 0 < total.copies.missed
    folder = str(tmp_path / "checkpoint-keys")
    assert stored_costs(folder) == writer.costs


def test_costs_that_cannot_be_read_or_stored_are_none(tmp_path: Path) -> None:
    store_costs(str(tmp_path / "keys"), COSTS)
    assert stored_costs(str(tmp_path / "keys")) == COSTS
    for text in ("", "[]", '{"debts": 1}', '{"debts": {}, "copies": {}}', '{"debts": {"a": {}}}'):
        (tmp_path / "keys" / COSTS_FILE).write_text(text)
        assert stored_costs(str(tmp_path / "keys")) is None, text
    (tmp_path / "file").write_text("")
    store_costs(str(tmp_path / "file" / "keys"), COSTS)
    assert stored_costs(str(tmp_path / "file" / "keys")) is stored_costs(None) is None


def test_status_shows_copies_amplification_and_vectors(
    made: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    show(made.config(), as_json=False)
    text = capsys.readouterr().out
    assert "B of at most 16 GiB in " in text
    assert "searches of files by copies" in text
    assert "times the changed rows" in text
    assert "deletion vectors of accounts: " in text
    show(made.config(), as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["key_copies"]["limit"] == 16 << 30
    assert set(found["deletion_vectors"]["accounts"]) == {"deleted_share", "due_bytes"}
    assert found["last_batch"]["epoch"] <= found["epoch"]
    assert found["last_batch"]["written_bytes"] > 0


def test_too_many_deleted_rows_are_a_problem() -> None:
    debts = {
        "behind": CompactionDebt(1000, 501, DEBT_BYTES + 1),
        "small": CompactionDebt(1000, 501, DEBT_BYTES),
        "sound": CompactionDebt(1000, 500, DEBT_BYTES + 1),
        "empty": CompactionDebt(),
    }
    (one,) = debt_problems(debts)
    assert (one.condition, one.subject) == ("compaction_debt", "table behind")
    assert "50% of its rows are deleted, and 256 MiB wait" in one.text


def test_plan_says_which_tables_have_or_get_vectors(made: Deployment) -> None:
    def names(**settings: Any) -> dict[str, str]:
        config = made.config().model_copy(update=settings)
        return {
            one.subject: one.name
            for one in planned_changes(config, preview_next_run(config))
            if one.name.startswith("vectors")
        }

    assert names()["accounts"] == "vectors"
    assert names(deletion_vectors="never")["accounts"] == "vectors_kept"
    with_none = [table for table, name in names().items() if name == "vectors_made"]
    assert with_none, "each table of the logs' rest has vectors already"
    assert with_none[0] not in names(deletion_vectors="never")
    assert names(deletion_vectors="auto", deletion_vectors_above=1)["accounts"] == "vectors"


def test_doctor_knows_the_folder_of_key_copies(
    made: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = made.config()

    def finding() -> tuple[str, str, str]:
        (one,) = (one for one in check_machine(gather_machine(config, None)) if one.subject == "cache")
        return one.level, one.name, one.text

    assert finding()[:2] == ("ok", "cache")
    assert str(made.folder / "checkpoint-keys") in finding()[2]
    monkeypatch.setattr("observe.doctor.machine.free_bytes", lambda _: KEPT_FREE_BYTES)
    assert finding()[:2] == ("warn", "cache_full")
    (tmp_path / "file").write_text("")
    cache = config.cache.model_copy(update={"path": str(tmp_path / "file" / "keys")})
    config = config.model_copy(update={"cache": cache})
    assert finding()[:2] == ("warn", "cache_unwritable")


def test_metrics_have_the_costs() -> None:
    metrics = StreamMetrics(None, None)
    metrics.count_costs(COSTS)
    metrics.count_costs(replace(COSTS, debts={"accounts": CompactionDebt(1000, 100, 0)}))
    metrics.costs.set_copy_bytes(9)
    found = {(s.name, *s.labels.values()): s.value for one in metrics.collect() for s in one.samples}
    wanted: dict[tuple[str, ...], float] = {
        ("written_bytes_total", "data"): 500,
        ("written_bytes_total", "vectors"): 60,
        ("written_bytes_total", "compaction"): 40,
        ("changed_bytes_total",): 200,
        ("key_copy_searches_total", "hit"): 6,
        ("key_copy_searches_total", "miss"): 2,
        ("deleted_rows_ratio", "accounts"): 0.1,
        ("compaction_debt_bytes", "accounts"): 0,
        ("key_copy_bytes",): 9,
    }
    for name, value in wanted.items():
        assert found["aggregator_" + name[0], *name[1:]] == pytest.approx(value), name
    assert metrics.status()["last_batch"]["amplification"] == 3.0


def test_the_page_shows_deleted_rows_and_the_last_batch(made: Deployment) -> None:
    config = made.config()
    costs = read_write_costs(config, made.location)
    size = TableSize("accounts", 3, 2, 2048, 10, CompactionDebt(1000, 412, 2048))
    page = render_page(replace(facts(), sizes=[size], costs=costs))
    assert "41.2%" in page
    assert "key copies: " in page


def test_bytes_are_told_in_words() -> None:
    assert (
        written_text(COSTS)
        == "300 B written, 30 B by vectors, 20 B by compaction, 3.0 times the changed rows"
    )
    assert (
        written_text(replace(COSTS, changed_bytes=0, vector_bytes=0, compaction_bytes=0)) == "250 B written"
    )
