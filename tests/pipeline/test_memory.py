"""Memory is bounded by decompressed bytes: logs whose rows repeat themselves a thousand times over."""

import json
import subprocess
import sys
from pathlib import Path

import msgpack
import pyarrow as pa
import pytest

from pipeline.changelog.keyed_rows import DELETED, INSERT, KEYED, REPLACE, UPDATE
from pipeline.compaction.choose import groups_to_join
from pipeline.compaction.rewrite import sized_files
from pipeline.executors.log_cells import (
    MAX_SAMPLED_VALUE_BYTES,
    CellDigest,
    leading_fields,
    log_cells,
)
from pipeline.executors.log_piece import LogPiece
from pipeline.executors.read_task import OVERWRITTEN_TUPLE, without_overwritten_tuples
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.log_stream import LogStream
from tests.pipeline.deployment import Deployment
from tests.pipeline.memory_case import TEXT, log_of
from tests.soaked import partly_soaked

MIB = 1 << 20


def run(how: str, rows: int, keys: int, folder: Path) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.pipeline.memory_case", how, str(rows), str(keys), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == keys
    return found


@pytest.mark.parametrize(("rows", "keys"), partly_soaked([(1000, 1000)], [(2500, 2500), (2500, 1)]))
def test_a_local_batch_takes_at_most_eight_times_its_rows(tmp_path: Path, rows: int, keys: int) -> None:
    decoded = rows * len(TEXT) // MIB
    assert run("local", rows, keys, tmp_path)["driver"] < 350 + 8 * decoded


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("keys", [1, 20_000])
def test_a_distributed_batch_of_two_gigabytes_takes_little(tmp_path: Path, keys: int) -> None:
    found = run("distributed", 22_000 if keys == 1 else keys, keys, tmp_path)
    assert found["driver"] < 700
    assert found["worker"] < 1600


def test_the_sample_of_a_byte_range_is_small_and_has_keys(tmp_path: Path) -> None:
    member = log_of(tmp_path, 400, 400)
    source = {"path": str(member.path), "start": "logs", "replicaset": member.replicaset}
    log_stream = LogStream(parse_options({"path": source["path"], "start": "logs"}))
    start = log_stream.initial()
    segments = segments_between(log_stream, start, log_stream.latest(start))
    tasks = enumerate(tasks_of(log_stream, segments))
    found = [
        row
        for number, task in tasks
        for cell in log_cells(task, log_stream.options, number)
        for row in cell.to_pylist()
    ]
    assert sum(LogPiece.decoded(one["piece"]).bytes for one in found) > 400 * len(TEXT)
    assert sum(len(one["digest"]) for one in found) < MIB
    rows = [row for one in found for row in CellDigest.decoded(one["digest"]).sample.to_pylist()]
    keys = [msgpack.unpackb(row["tuple"])[0] for row in rows if row["space_id"] == 512]
    assert len(keys) > 100
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("cut", [0, 1, 5, MAX_SAMPLED_VALUE_BYTES])
def test_leading_fields_are_an_array_of_whole_fields(cut: int) -> None:
    fields = [7, "name", {"a": [1, 2]}, "x" * 5000, 9]
    found = msgpack.unpackb(leading_fields(msgpack.packb(fields)[:cut]))
    assert found == fields[: len(found)]
    assert len(found) == {0: 0, 1: 0, 5: 1}.get(cut, 3)


def keyed(rows: list[tuple[int, int, str, bool]]) -> pa.Table:
    """Return keyed rows: meaning, type, key, whether of a snapshot; each has its number as tuple."""
    return pa.Table.from_pylist(
        [
            {
                "meaning": meaning,
                "type": kind,
                "is_snapshot": is_snapshot,
                "key": key.encode(),
                "tuple": None if kind in (UPDATE, DELETED) else b"\x91" + bytes([number]),
            }
            for number, (meaning, kind, key, is_snapshot) in enumerate(rows)
        ],
        schema=KEYED,
    )


def test_tuples_that_are_overwritten_are_not_handed_on() -> None:
    rows = keyed(
        [
            (0, INSERT, "a", False),  # replaced
            (0, INSERT, "b", False),  # the next row needs it
            (0, REPLACE, "a", False),  # deleted
            (0, UPDATE, "b", False),
            (0, DELETED, "a", False),
            (1, REPLACE, "a", False),  # another space's
            (0, REPLACE, "b", False),  # the last one
            (0, REPLACE, "c", True),  # of a snapshot
            (0, REPLACE, "c", True),
            (0, REPLACE, "d", False),  # a snapshot's row is compared with it
            (0, REPLACE, "d", True),
        ]
    )
    found = without_overwritten_tuples(rows)
    gone = [i for i, (a, b) in enumerate(zip(found["tuple"], rows["tuple"], strict=True)) if a != b]
    assert gone == [0, 2]
    assert {found["tuple"][i].as_py() for i in gone} == {OVERWRITTEN_TUPLE}
    assert found.drop_columns("tuple").equals(rows.drop_columns("tuple"))


def test_files_that_are_large_in_memory_are_not_joined(tmp_path: Path) -> None:
    member = log_of(tmp_path / "logs", 40, 40)
    deployment = Deployment(tmp_path, {"a1": member.path}, {"a1": member.replicaset})
    deployment.run(budget=1)
    with deployment.writer() as (warehouse, _):
        tables = warehouse.open_tables
        files = tables.files("orders")
        assert len(files) > 3
        sized = [*sized_files(tables, "orders", files, {})]
        found = [len(one) for one in groups_to_join(sized, max_memory_bytes=12 * len(TEXT))]
        assert 2 <= min(found) <= max(found) <= 6, "a row is in a file twice: as _tuple, and typed"
        assert [len(one) for one in groups_to_join(sized)] == [len(files)]
        assert [*groups_to_join(sized, max_file_memory_bytes=len(TEXT) // 2)] == []
