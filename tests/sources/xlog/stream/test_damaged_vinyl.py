"""Damaged files of vinyl: each stops its one thing, by name, and nothing else.

Real files (`tests/recordings/vinyl`): every byte of a `.vylog`, an `.index` and a `.run` header is changed in turn; a
table then has the server's tuples, or it is not there at all.
"""

import logging
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import AggregatorError, XlogChecksumError, XlogError, XlogTruncatedError
from sources.xlog.format.damage import Mode
from sources.xlog.options import parse_options
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.read import RUN_PART_BYTES
from sources.xlog.stream.vinyl import vinyl_spaces_of
from tests.pipeline.deployment import Deployment
from tests.pipeline.test_recorded_runs import RECORDED, expected, held, with_snapshots
from tests.recordings.scripted import RUNS
from tests.sources.xlog.stream.test_vinyl import read

NUMBER = 4
TRUTH = RUNS.truths()[NUMBER - 1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_snapshots(tmp_path / "a1", RECORDED, [NUMBER], [])


def files_of(folder: Path, kind: str) -> list[Path]:
    """Return the files of a kind that the snapshot needs."""
    if kind == "vylog":
        return list(folder.glob("*.vylog"))
    (snapshot,) = folder.glob("*.snap")
    directory = LogStream(parse_options({"path": str(folder)})).directory(str(folder))
    directory.listing()
    trees = vinyl_spaces_of(directory, snapshot.name).trees
    return [folder / f"{tree.space_id}/0/{run.id:020}.{kind}" for tree in trees for run in tree.runs]


def cut(data: bytes) -> bytes:
    return data[: data.index(b"\n\n") + 40]


def flipped(data: bytes) -> bytes:
    """Change a byte in the middle of the blocks."""
    position = (data.index(b"\n\n") + len(data)) // 2
    return data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]


DAMAGES = [cut, flipped, lambda _: b"", lambda _: b"\x00" * 300, lambda data: data[:-4]]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_vylog_refuses_the_vinyl_spaces_of_its_snapshot(
    folder: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = files_of(folder, "vylog")
    file.write_bytes(damage(file.read_bytes()))
    deployment = Deployment(folder.parent, {"a1": folder}, start="snapshot")
    with caplog.at_level(logging.ERROR):
        deployment.run()
    if damage is DAMAGES[-1]:  # what follows the SNAPSHOT record is not read
        assert held(deployment, TRUTH) == expected(TRUTH)
        return
    assert held(deployment, TRUTH) == {space: [] for space in TRUTH}
    assert file.name in caplog.text
    assert deployment.rows("_changelog", ["lsn"])
    refused = {row["name"]: row["state"] for row in deployment.rows("_schema")}
    assert all("refused" in refused[space] for space in TRUTH)


@pytest.mark.parametrize("kind", ["index", "run"])
def test_a_missing_file_of_a_run_refuses_its_space_alone(
    folder: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = files_of(folder, kind)[0]
    file.unlink()
    deployment = Deployment(folder.parent, {"a1": folder}, start="snapshot")
    with caplog.at_level(logging.ERROR):
        deployment.run()
    found, wanted = held(deployment, TRUTH), expected(TRUTH)
    assert [space for space in TRUTH if found[space] != wanted[space]] == [
        space for space in TRUTH if found[space] == []
    ]
    refused = [row["name"] for row in deployment.rows("_schema") if row["state"].startswith("refused")]
    assert len(refused) == 1
    assert "is missing" in caplog.text
    assert file.name in caplog.text


@pytest.mark.parametrize("kind", ["index", "run"])
@pytest.mark.parametrize("damage", [DAMAGES[0], DAMAGES[2], DAMAGES[3]])
def test_a_damaged_file_of_a_run_refuses_its_space_alone(
    folder: Path, kind: str, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    file = files_of(folder, kind)[0]
    file.write_bytes(damage(file.read_bytes()))
    deployment = Deployment(folder.parent, {"a1": folder}, start="snapshot")
    with caplog.at_level(logging.ERROR):
        deployment.run()
    found, wanted = held(deployment, TRUTH), expected(TRUTH)
    lost = [space for space in TRUTH if found[space] != wanted[space]]
    assert len(lost) == 1
    assert found[lost[0]] == []
    assert file.name in caplog.text


def test_a_damaged_block_of_a_run_is_an_error_with_its_position(folder: Path) -> None:
    file = files_of(folder, "run")[0]
    file.write_bytes(flipped(file.read_bytes()))
    deployment = Deployment(folder.parent, {"a1": folder}, start="snapshot")
    with pytest.raises(XlogError) as caught:
        deployment.run()
    assert str(caught.value.fields["file"]).endswith(file.name)
    assert int(caught.value.fields["offset"]) > 0


@pytest.mark.parametrize("part", [RUN_PART_BYTES, 1])
@pytest.mark.parametrize("index", [0, 4, -1])
@pytest.mark.parametrize("mode", list(Mode))
def test_a_damaged_block_of_a_run_costs_that_block_and_is_named(
    folder: Path,
    mode: Mode,
    index: int,
    part: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Change the magic, the length or the rows of a block between others; all other files are read as before."""
    monkeypatch.setattr("sources.xlog.stream.read.RUN_PART_BYTES", part)
    _, whole = read(folder)
    file = max(files_of(folder, "run"), key=lambda path: path.stat().st_size)
    begin, end = sorted({row["position"] for row in whole if row["file"] == file.name})[1:3]
    data = bytearray(file.read_bytes())
    data[range(begin, end)[index]] ^= 0x0F
    file.write_bytes(data)
    if mode is Mode.FAILFAST:
        with pytest.raises(XlogError) as caught:
            read(folder)
        assert (caught.value.fields["file"], caught.value.fields["offset"]) == (file.name, begin)
        return
    _, rows = read(folder, mode=mode)
    damaged = [row for row in rows if row.get("_corrupt_record") is not None]
    rows = [{name: row[name] for name in whole[0]} for row in rows if row not in damaged]
    assert rows == [row for row in whole if (row["file"], row["position"]) != (file.name, begin)]
    assert len(rows) < len(whole)
    assert re.search(rf"{file.name}: 1 damaged parts, {end - begin} bytes", caplog.text)
    if mode is Mode.PERMISSIVE:
        (record,) = damaged
        assert (record["file"], record["position"]) == (file.name, begin)
        assert str(record["space_id"]) == file.parent.parent.name


@pytest.mark.parametrize(("kind", "error"), [("vylog", XlogChecksumError), ("run", XlogTruncatedError)])
def test_a_source_that_is_read_by_itself_goes_by_its_mode(
    folder: Path, kind: str, error: type[XlogError]
) -> None:
    file = files_of(folder, kind)[0]
    file.write_bytes((flipped if kind == "vylog" else cut)(file.read_bytes()))
    with pytest.raises(error):
        read(folder)
    for mode in ("DROPMALFORMED", "PERMISSIVE"):
        segments, rows = read(folder, mode=mode)
        assert rows
        spaces = {segment.space_id for segment in segments}
        assert (spaces == {None}) == (kind == "vylog")


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_makes_a_foreign_error_or_a_wrong_table(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    file = draw.choice(files_of(folder, ("vylog", "index", "run")[seed % 3]))
    data = bytearray(file.read_bytes())
    position = draw.randrange(len(data))
    data[position : position + draw.choice((1, 20))] = draw.randbytes(draw.choice((0, 1, 20)))
    file.write_bytes(data)
    deployment = Deployment(folder.parent, {"a1": folder}, start="snapshot")
    stopped: AggregatorError | None = None
    try:
        deployment.run()
    except AggregatorError as error:
        stopped = error
    if stopped is not None:
        assert "file" in stopped.fields
        return
    found, wanted = held(deployment, TRUTH), expected(TRUTH)
    assert all(found[space] in ([], wanted[space]) for space in TRUTH)
