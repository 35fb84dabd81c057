"""Vinyl rows from before a checkpoint: a start from a snapshot holds what the servers hold."""

import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from schemas.errors import UnsupportedError, XlogMissingError, XlogRowError
from sources.xlog.directory.offset import from_text, to_text
from sources.xlog.format.vylog import (
    ALL_KEYS,
    Interval,
    RecordKey,
    RecordType,
    Run,
    Tree,
    trees_at_checkpoint,
)
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between, tasks_of
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.read import read_range
from sources.xlog.stream.segment import Segment
from sources.xlog.stream.slices import Slices
from tests.truth import Recording, own, recordings
from tests.udfs.versions.folded import fold
from udfs.keys.keys import canonical_keys
from udfs.operations.tuple_format import format_of
from udfs.operations.update_rules import rules_of
from udfs.versions.key_state import RowChange

NODES = [(one, node) for one in recordings() for node in one.nodes if one.snapshots(node)]
IDS = [f"{one.name}-{node}" for one, node in NODES]


def read(folder: Path, **options: str) -> tuple[list[Segment], list[dict[str, Any]]]:
    parsed = parse_options({"path": str(folder), "start": "snapshot", **options})
    log_stream = LogStream(parsed)
    start = log_stream.initial()
    segments = list(segments_between(log_stream, start, log_stream.latest(start)))
    rows = [
        row | {"segment": piece.segment.number}
        for task in tasks_of(log_stream, segments)
        for piece in task
        for batch in read_range(piece, parsed)
        for row in batch.to_pylist()
    ]
    return segments, rows


def final(recording: Recording, node: str, name: str, rows: list[dict[str, Any]]) -> list[bytes]:
    """Return what a space holds after its rows, by key."""
    space = recording.spaces(node)[name]
    fmt = format_of(space, rules_of(recording.info(node).version))
    changes: dict[bytes, list[RowChange]] = {}
    for row in rows:
        if row["space_id"] != space.id:
            continue
        whole = row["type"] in ("INSERT", "REPLACE", "UPSERT")
        data = pa.array([row["tuple"] if whole else row["key"]], pa.binary())
        key = canonical_keys(data, [space], 0, whole)[0].as_py()["key"]
        one = (row["type"], row["tuple"], row["operations"], row["index_base"], 1, row["lsn"] or 0, None)
        changes.setdefault(key, []).append(RowChange(*one))
    versions = [fold(None, own, [fmt]) for own in changes.values()]
    return sorted(v.tuple for v in versions if v is not None and v.tuple is not None)


@pytest.mark.parametrize(("recording", "node"), NODES, ids=IDS)
def test_a_start_from_the_snapshot_ends_in_the_servers_own_tuples(recording: Recording, node: str) -> None:
    _, rows = read(recording.directory(node))
    assert final(recording, node, "vin", rows) == sorted(recording.tuples(node, "vin"))


def node_with_runs() -> tuple[Recording, str]:
    """Return a member whose newest snapshot has vinyl rows."""
    recording = own()
    return recording, "a1"


def test_without_the_runs_rows_would_lack() -> None:
    recording, node = node_with_runs()
    segments, rows = read(recording.directory(node))
    runs = {segment.number for segment in segments if segment.space_id is not None}
    assert runs
    rest = [row for row in rows if row["segment"] not in runs]
    assert final(recording, node, "vin", rest) != sorted(recording.tuples(node, "vin"))


def test_rows_of_a_run_look_like_those_of_the_snapshot() -> None:
    recording, node = node_with_runs()
    segments, rows = read(recording.directory(node))
    run = next(segment for segment in segments if segment.space_id is not None)
    (snapshot,) = (one for one in segments if one.is_snapshot and one.space_id is None)
    assert run.space_id in (snapshot.vinyl_space_ids or ())
    assert (run.is_snapshot, run.vclock, run.gap) == (True, snapshot.vclock, None)
    own_rows = [row for row in rows if row["segment"] == run.number]
    assert {row["type"] for row in own_rows} <= {"INSERT", "REPLACE", "DELETE", "UPSERT"}
    assert {(row["space_id"], row["lsn"], row["timestamp"], row["replica_id"]) for row in own_rows} == {
        (run.space_id, None, None, None)
    }
    assert pickle.loads(pickle.dumps(run)) == run


def test_spaces_that_are_not_wanted_are_not_read() -> None:
    recording, node = node_with_runs()
    vin = recording.spaces(node)["vin"].id
    segments, rows = read(recording.directory(node), spaces=str(vin))
    assert {row["space_id"] for row in rows} == {vin}
    assert any(segment.space_id == vin for segment in segments)
    segments, _ = read(recording.directory(node), spaces="280")
    assert all(segment.space_id is None for segment in segments)


def test_runs_are_read_once_however_the_snapshot_is_split(tmp_path: Path) -> None:
    recording, node = node_with_runs()
    shutil.copytree(recording.directory(node), tmp_path / node)
    log_stream = LogStream(parse_options({"path": str(tmp_path / node), "start": "snapshot"}))
    start, seen = log_stream.initial(), []
    while True:
        end = from_text(to_text(log_stream.latest(start, max_bytes=1)))
        if end == start:
            break
        seen += [s.file for s in segments_between(log_stream, start, end) if s.space_id is not None]
        start = end
    assert len(seen) == len(set(seen)) >= 1


def test_a_snapshot_without_its_vylog_has_no_vinyl_rows(tmp_path: Path) -> None:
    recording, node = node_with_runs()
    shutil.copytree(recording.directory(node), tmp_path / node)
    for file in (tmp_path / node).glob("*.vylog"):
        file.unlink()
    segments, _ = read(tmp_path / node)
    assert [segment.vinyl_space_ids for segment in segments if segment.is_snapshot] == [frozenset()]


def test_a_run_that_is_gone_is_named(tmp_path: Path) -> None:
    recording, node = node_with_runs()
    shutil.copytree(recording.directory(node), tmp_path / node)
    runs = list((tmp_path / node).glob("*/0/*.run"))
    for file in runs:
        file.unlink()
    with pytest.raises(XlogMissingError, match=r"the \.vylog names") as caught:
        read(tmp_path / node)
    assert runs[0].name in caught.value.fields["file"]
    assert "start: logs" in str(caught.value)


def record(kind: RecordType, keys: Mapping[RecordKey, Any] | None = None) -> bytes:
    fields = {int(key): value for key, value in (keys or {}).items()}
    data: bytes = msgpack.packb([int(kind), fields], unicode_errors="surrogateescape")
    return data


TREE = [
    record(RecordType.CREATE_LSM, {RecordKey.LSM_ID: 1, RecordKey.SPACE_ID: 600}),
    record(RecordType.INSERT_RANGE, {RecordKey.LSM_ID: 1, RecordKey.RANGE_ID: 2}),
    record(RecordType.CREATE_RUN, {RecordKey.LSM_ID: 1, RecordKey.RUN_ID: 3, RecordKey.DUMP_LSN: 50}),
    record(RecordType.CREATE_RUN, {RecordKey.LSM_ID: 1, RecordKey.RUN_ID: 4, RecordKey.DUMP_LSN: 40}),
    record(RecordType.INSERT_SLICE, {RecordKey.RANGE_ID: 2, RecordKey.RUN_ID: 3, RecordKey.SLICE_ID: 7}),
    record(RecordType.INSERT_SLICE, {RecordKey.RANGE_ID: 2, RecordKey.RUN_ID: 4, RecordKey.SLICE_ID: 8}),
]
END = record(RecordType.SNAPSHOT)


def test_the_records_say_which_runs_a_space_has() -> None:
    assert trees_at_checkpoint([*TREE, END], "f") == {600: Tree(600, (Run(4, 40), Run(3, 50)))}
    dropped = record(RecordType.DELETE_SLICE, {RecordKey.SLICE_ID: 8})
    assert trees_at_checkpoint([*TREE, dropped, END], "f") == {600: Tree(600, (Run(3, 50),))}
    assert trees_at_checkpoint([*TREE, END, dropped], "f")[600].runs == (Run(4, 40), Run(3, 50))
    gone = record(RecordType.DROP_LSM, {RecordKey.LSM_ID: 1})
    assert trees_at_checkpoint([*TREE, gone, END], "f") == {}


def test_a_secondary_index_is_none_of_a_spaces_rows() -> None:
    other = record(
        RecordType.CREATE_LSM, {RecordKey.LSM_ID: 9, RecordKey.SPACE_ID: 600, RecordKey.INDEX_ID: 1}
    )
    assert trees_at_checkpoint([*TREE, other, END], "f")[600].runs == (Run(4, 40), Run(3, 50))


def slice_of(number: int, begin: Any, end: Any, run: int = 3) -> bytes:
    keys = {RecordKey.RANGE_ID: 2, RecordKey.RUN_ID: run, RecordKey.SLICE_ID: number}
    bounds = {RecordKey.BEGIN: begin, RecordKey.END: end}
    return record(
        RecordType.INSERT_SLICE,
        {**keys, **{key: bound for key, bound in bounds.items() if bound is not None}},
    )


@pytest.mark.parametrize(
    ("bounds", "intervals"),
    [
        ([(None, [5])], ((None, b"\x91\x05"),)),
        ([([5], None), (None, [5])], ALL_KEYS),
        ([([5], [9]), (None, [5]), (["a\udcff"], None)], ((None, b"\x91\x09"), (b"\x91\xa2a\xff", None))),
        ([([1], [2]), ([2], [1])], ((b"\x91\x01", b"\x91\x01"),)),
        ([([1], [2]), ([1], [3])], ((b"\x91\x01", b"\x91\x02"), (b"\x91\x01", b"\x91\x03"))),
    ],
)
def test_the_slices_of_a_run_say_which_keys_belong_to_the_space(
    bounds: list[tuple[Any, Any]], intervals: tuple[Interval, ...]
) -> None:
    """Only the first three are a server's."""
    own = [slice_of(9 + number, *bound) for number, bound in enumerate(bounds)]
    gone = record(RecordType.DELETE_SLICE, {RecordKey.SLICE_ID: 7})
    (_, run) = trees_at_checkpoint([*TREE, gone, *own, END], "f")[600].runs
    assert run.intervals == intervals


STATEMENTS = pa.table(
    {
        "type": ["REPLACE", "REPLACE", "DELETE", "UPSERT", "DELETE", "REPLACE"],
        "tuple": [msgpack.packb(one) for one in ([1, "a"], [5, "b"])]
        + [None, msgpack.packb([8, "a"]), None, msgpack.packb(["no key"])],
        "key": [None, None, msgpack.packb([5]), None, msgpack.packb([9]), None],
    },
    schema=pa.schema([("type", pa.string()), ("tuple", pa.binary()), ("key", pa.binary())]),
).to_batches()[0]
PART = {"field": 0, "type": "unsigned"}


@pytest.mark.parametrize(
    ("intervals", "selected"),
    [
        (((None, b"\x91\x05"),), [True, False, False, False, False, True]),
        (((b"\x91\x05", b"\x91\x08"),), [False, True, True, False, False, True]),
        (((None, b"\x91\x05"), (b"\x91\x09", None)), [True, False, False, False, True, True]),
        (((None, b"\x90"),), [False, False, False, False, False, True]),
    ],
)
def test_statements_are_selected_by_their_keys(intervals: tuple[Interval, ...], selected: list[bool]) -> None:
    slices = pickle.loads(pickle.dumps(Slices(600, [PART], intervals)))
    assert slices.selector("f")(STATEMENTS).to_pylist() == selected


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([], XlogRowError),
        (7, XlogRowError),
        ([{"field": 0}], UnsupportedError),
        ([{**PART, "type": "boolean"}], XlogRowError),
        ([{**PART, "type": "string", "collation": 1}], UnsupportedError),
    ],
)
def test_slices_of_keys_without_a_known_order_are_refused(parts: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Slices(600, parts, ((None, b"\x91\x05"),)).selector("f")


@pytest.mark.parametrize("rows", [TREE, [b"\x91"], [b"\x92\xa1x\x80"], [b"\x92\x00\x00"]])
def test_what_is_no_vylog_is_refused(rows: list[bytes]) -> None:
    with pytest.raises(XlogRowError):
        trees_at_checkpoint(rows, "00.vylog")
