"""The printed queries on spaces of every type, without a format, and what is printed where a query fails."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from jobs.report import report
from observe.query_engines import LocalEngine
from observe.report.printed_queries import (
    MAX_SHOWN_ROWS,
    TitledQuery,
    contended_table_queries,
    grid_lines,
    plain_columns,
    result_lines,
)
from tests.jobs.deployment import Deployment
from tests.truth import own
from warehouse.delta.location import location_of

VARIANT = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary())])
TABLE = pa.table(
    {
        "any": pa.array([{"value": b"\1", "metadata": b"\1"}], VARIANT),
        "id": pa.array([1], pa.int32()),
        "_key": [b"\1"],
        "_tuple": [b"\x90"],
        "_replicaset_id": pa.array([1], pa.int32()),
        "_global_id": [4],
        "_lsn": [9],
        "_timestamp": pa.array([datetime(2024, 5, 2, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
    }
)
CONFLICTS = pa.table(
    {
        "space": ["t"],
        "key": [b"\1"],
        "policy": ["last_write_wins"],
        "epoch": [7],
        "winner_replicaset_id": [1],
        "loser_replicaset_id": [2],
        "winner_timestamp": pa.array([datetime(2024, 5, 2, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
        "loser_timestamp": pa.array([datetime(2024, 5, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
    }
)


@pytest.mark.parametrize(
    ("left_out", "shown"), [([], ["id"]), (["id"], [])], ids=["fields", "none but variants"]
)
def test_the_queries_of_a_contended_table(tmp_path: Path, left_out: list[str], shown: list[str]) -> None:
    root = tmp_path / "printed.db"
    write_deltalake(str(root / "t"), TABLE.drop_columns(left_out))
    write_deltalake(str(root / "_conflicts"), CONFLICTS)
    engine = LocalEngine(location_of(str(root)), "printed")
    engine.register(["t", "_conflicts"])
    columns = plain_columns(engine, "printed.t")
    assert [name for name in columns if not name.startswith("_")] == shown
    for query in contended_table_queries("printed", "t", columns):
        lines = list(result_lines(engine, query))
        assert not any("failed" in line for line in lines), lines
        assert any(line.startswith("|") and "2024-05-02" in line for line in lines), lines


def test_a_query_that_fails_is_one_line(tmp_path: Path) -> None:
    engine = LocalEngine(location_of(str(tmp_path / "none.db")), "none")
    lines = list(result_lines(engine, TitledQuery("Nothing", "SELECT * FROM nowhere.nothing")))
    assert lines[:2] == ["-- Nothing", "SELECT * FROM nowhere.nothing;"]
    assert lines[2].startswith("-- this query failed: ")
    assert len(lines) <= 5


def test_rows_are_shown_as_spark_shows_them() -> None:
    moment = datetime(2024, 5, 2, 1, 2, 3, 450_000, tzinfo=UTC)
    rows = pa.table(
        {"a": [1, None], "long": ["x" * 50, "y"], "key": [b"\x91\xa5", b""], "at": [moment, None]}
    )
    assert list(grid_lines(rows.append_column("is", [[True, False]]))) == [
        "+----+----------------------------------------+-----+----------------------+-----+",
        "|   a|                                    long|  key|                    at|   is|",
        "+----+----------------------------------------+-----+----------------------+-----+",
        "|   1|xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...|91 A5|2024-05-02 01:02:03.45| true|",
        "|NULL|                                       y|     |                  NULL|false|",
        "+----+----------------------------------------+-----+----------------------+-----+",
    ]
    many = list(grid_lines(pa.table({"n": range(MAX_SHOWN_ROWS + 1)})))
    assert many[-1] == f"only showing top {MAX_SHOWN_ROWS} rows"
    assert len(many) == 3 + MAX_SHOWN_ROWS + 2


def test_the_recordings_of_two_replicasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = own()
    deployment = Deployment(tmp_path, {name: recording.directory(name) for name in ("a1", "b1")})
    deployment.write()
    page = tmp_path / "page.html"
    report(deployment.config(), str(page))
    shown = capsys.readouterr().out
    assert "failed" not in shown
    assert "Who won which conflict" in shown
    assert 'id="attention"' in page.read_text()
