"""A torn or zeroed last block, and `force_recovery`: `tests/recordings/torn`, a real 3.9.

`da` and `db` are two members. The first log of `da` ends with a block of which only the beginning was written, and with
zeros. The next log begins right before it.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.commit.batch import BatchName
from schemas.errors import XlogChecksumError, XlogError
from sources.xlog.directory.offset import to_text
from sources.xlog.stream.batch import segments_between
from tests.pipeline.deployment import Deployment
from tests.truth import REPOSITORY, rows_of_truth

RECORDING = REPOSITORY / "tests" / "recordings" / "torn"
FIRST, SECOND = "00000000000000000000.xlog", "00000000000000000085.xlog"
TORN = 4589
"""Where the torn block of the first log begins, in bytes."""


def deployment_of(folder: Path, members: Sequence[str], start: str = "logs") -> Deployment:
    for name in members:
        shutil.copytree(RECORDING / name, folder / name)
    return Deployment(folder, {name: folder / name for name in members}, start=start)


def assert_equal(deployment: Deployment) -> None:
    assert deployment.tuples("kv") == rows_of_truth(RECORDING)
    assert deployment.rows("_gaps") == []
    assert deployment.rows("_pending") == []


@pytest.mark.parametrize("start", ["logs", "snapshot"])
@pytest.mark.parametrize("budget", [None, 500])
def test_what_the_server_left_out_is_left_out(
    tmp_path: Path, budget: int | None, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = deployment_of(tmp_path, ["da"], start=start)
    deployment.run(budget)
    assert_equal(deployment)
    (message,) = {record.getMessage() for record in caplog.records if "left out" in record.getMessage()}
    assert f"left out what is at byte {TORN}" in message


@pytest.mark.parametrize(
    "torn", [b"", b"\xd5", b"\xd5\xba\x0b\xab", bytes(3), bytes(5000), b"no block", None]
)
def test_whatever_is_left_of_the_block(tmp_path: Path, torn: bytes | None) -> None:
    deployment = deployment_of(tmp_path, ["da"])
    path = tmp_path / "da" / FIRST
    content = path.read_bytes()
    path.write_bytes(content[:TORN] + (content[TORN:].rstrip(b"\0") + b"\1" if torn is None else torn))
    deployment.run()
    assert_equal(deployment)


def test_a_block_that_was_planned_while_the_server_was_down(tmp_path: Path) -> None:
    """The header of the torn block is whole, so a batch was planned with it; Spark asks for it after each restart."""
    deployment = deployment_of(tmp_path, ["da"])
    (tmp_path / "da" / SECOND).rename(tmp_path / "later")
    with deployment.writer() as (_, writer):
        deployment.batch(writer, None)
        deployment.batch(writer, 1)
        planned = writer.log_stream.latest(deployment.offset)
        with pytest.raises(XlogChecksumError):
            deployment.batch(writer, None)
    assert next(iter(planned.values())).position > TORN
    (tmp_path / "later").rename(tmp_path / "da" / SECOND)
    with deployment.writer() as (_, writer):
        segments = segments_between(writer.log_stream, deployment.offset, planned)
        assert [segment.end for segment in segments] == [TORN]
        writer.process(segments, BatchName("test", 7, (to_text(deployment.offset), to_text(planned))))
    deployment.offset, deployment.batches = planned, 8
    deployment.run()
    assert_equal(deployment)


def damage(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("budget", [None, 500])
def test_another_member_has_the_rows_of_a_log_that_is_really_damaged(
    tmp_path: Path, budget: int | None
) -> None:
    """Nothing proves that the server does not have the rows of the damaged block, and it does have them."""
    deployment = deployment_of(tmp_path, ["da", "db"])
    damage(tmp_path / "da" / FIRST, TORN - 500)
    deployment.run(budget)
    assert {entry.leader for entry in deployment.offset.values()} == {"db"}
    assert_equal(deployment)


def test_without_another_member_the_damage_is_told_after_all_rows_before_it(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, ["da"])
    damage(tmp_path / "da" / FIRST, TORN - 500)
    with pytest.raises(XlogError) as told:
        deployment.run()
    assert told.value.fields["file"] == FIRST
    assert int(told.value.fields["offset"]) < TORN
    (entry,) = deployment.offset.values()
    assert entry.position == told.value.fields["offset"]
    assert len(deployment.tuples("kv")) > 40
