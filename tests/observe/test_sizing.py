"""What a deployment needs: measured from logs whose rows, times and bytes are known."""

import json
from pathlib import Path

import pytest

from config.deployment import SourceConfig
from jobs.size import size
from observe.sizing import MINUTE, estimate, measure_source, measure_tables
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment


def written(folder: Path) -> Node:
    node = Node(folder, "a1").define(600, "users", (("id", "unsigned"),))
    for number in range(600):
        node.put(600, number, at=1000 + number)
    for number in range(1200):
        node.put(600, number, at=2401 + number / 20)
    node.close()
    return node


def test_a_source_is_measured(tmp_path: Path) -> None:
    node = written(tmp_path)
    found = measure_source(SourceConfig(name="a1", path=str(node.path)), 1 << 30)
    assert found.error is None
    assert found.rows >= 1800
    assert found.log_bytes == sum(path.stat().st_size for path in node.path.glob("*.xlog")) - 4
    assert 1150 <= found.busiest_rows <= 1250


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deployment = Deployment(tmp_path, {"a1": tmp_path / "none"}, replicasets_of("a1"))
    assert size(deployment.config()) == 1
    assert "none" in capsys.readouterr().out


def test_tables_and_retention_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = written(tmp_path)
    deployment = Deployment.of(tmp_path, node)
    config = deployment.config()
    source = measure_source(config.sources[0], config.max_block_bytes)
    assert measure_tables(deployment.location) is None
    deployment.run()
    tables = measure_tables(deployment.location)
    assert tables is not None
    assert (tables.tables, tables.table_rows) == (1, 1200)
    assert tables.changelog_rows >= 1800
    found = estimate(config, [source], tables)
    assert found.busiest_rows_per_second == pytest.approx(source.busiest_rows / MINUTE)
    assert found.changelog_bytes is None
    assert "kept for ever: _changelog" in found.advice[0]
    kept = estimate(
        config.model_copy(update={"retention": config.retention.model_copy(update={"changelog": 10})}),
        [source],
        tables,
    )
    assert kept.changelog_bytes == pytest.approx(10 * kept.changelog_bytes_per_day)
    assert size(config, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["tables"]["table_rows"] == 1200
    assert size(config) == 0
    assert "users" not in capsys.readouterr().err


def test_more_rows_need_more_cores(tmp_path: Path) -> None:
    node = written(tmp_path)
    config = Deployment.of(tmp_path, node).config()
    source = measure_source(config.sources[0], config.max_block_bytes)
    few, many = (
        estimate(config, [type(source)("a", rows * 60, 1, 60.0, rows * 60)], None)
        for rows in (1000, 20_000_000)
    )
    assert few.cores == 1
    assert many.cores > 60
    assert many.memory_bytes > few.memory_bytes
    assert any("this machine has" in text for text in many.advice)
