"""What the job tells a spool that it has passed: never more than a replay, a stand-in or a lost checkpoint needs."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.deployment import Config, SourceConfig
from pipeline import acknowledge as acknowledge_module
from pipeline.acknowledge import Acknowledger, acknowledged_vclock, reader_name
from pipeline.state import ReplicasetState, State
from sources.spool import acks
from sources.spool.acks import read_acks
from sources.spool.spool import Spool
from sources.xlog.directory.offset import OffsetEntry
from sources.xlog.options import parse_options
from sources.xlog.stream.log_stream import LogStream

UUID = "aaaaaaaa-0000-4000-8000-000000000000"
ONE, TWO = (f"aaaaaaaa-0000-4000-8000-00000000000{n}" for n in (1, 2))
VCLOCKS = st.dictionaries(st.integers(1, 31), st.integers(1, 9))


def source(path: str = "/spool", *origins: str) -> SourceConfig:
    return SourceConfig(name="a", path=path, origins=origins)


@given(VCLOCKS, VCLOCKS)
def test_neither_more_than_the_file_nor_more_than_is_settled(
    header: dict[int, int], settled: dict[int, int]
) -> None:
    found = acknowledged_vclock(header, ReplicasetState(1, UUID, settled=settled), source())
    assert found == {i: min(lsn, settled.get(i, 0)) for i, lsn in header.items()}


def test_an_instance_that_the_whitelist_leaves_out_holds_nothing_up() -> None:
    one = ReplicasetState(1, UUID, settled={1: 5}, cluster={1: ONE, 2: TWO})
    assert acknowledged_vclock({1: 7, 2: 9}, one, source("/spool", ONE)) == {1: 5, 2: 9}


def test_a_source_with_other_ids_is_acknowledged_in_its_own() -> None:
    one = ReplicasetState(1, UUID, settled={1: 5, 40: 3}, id_translations={"a": {2: 40}})
    assert acknowledged_vclock({1: 4, 2: 9}, one, source()) == {1: 4, 2: 3}


def config(path: Path, **other: str) -> Config:
    sources = [{"name": "a", "path": str(path)}]
    whole = {"warehouse": str(path / "w"), "checkpoint": str(path / "c"), "sources": sources, **other}
    return Config.model_validate(whole)


def test_two_warehouses_are_two_readers(tmp_path: Path) -> None:
    one, other = config(tmp_path), config(tmp_path / "x")
    assert reader_name(one) != reader_name(other)
    assert reader_name(one) == reader_name(config(tmp_path))
    assert reader_name(config(tmp_path, reader="central")) == "central"


def made(path: Path, *, is_spool: bool = True) -> Acknowledger:
    with Spool(path) as spool:
        spool.instance_uuid, spool.replicaset_uuid = ONE, UUID
        spool.begin_at({1: 3})
        spool._open_log(spool.versions)
    if not is_spool:
        (path / "lock").unlink()
    options = parse_options({"sources": f'[{{"name": "a", "path": "{path}"}}]'})
    return Acknowledger(config(path), LogStream(options))


STATE = State(0, {UUID: ReplicasetState(1, UUID, settled={1: 9})})
BEGAN = {UUID: OffsetEntry("a", "00000000000000000003.xlog", 0, {1: 3})}


def test_a_spool_is_known_by_its_logs_alone(tmp_path: Path) -> None:
    made(tmp_path)(BEGAN, STATE)
    assert [dict(ack.vclock) for ack in read_acks(tmp_path).values()] == [{1: 3}]


def test_a_directory_of_a_server_gets_nothing(tmp_path: Path) -> None:
    made(tmp_path, is_spool=False)(BEGAN, STATE)
    assert not (tmp_path / "acks").exists()


def test_what_cannot_be_acknowledged_is_reported_and_holds_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "acks").write_text("in the way")
    made(tmp_path)(BEGAN, STATE)
    assert f"{tmp_path} was not acknowledged" in caplog.text


def test_the_tables_are_on_the_disk_before_a_file_may_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta's commits are not forced to the disk: what they hold is in the spool's files until they are."""
    acknowledge, done = made(tmp_path), list[str]()
    (tmp_path / "w").mkdir()
    real = acks.write_ack

    def write(spool: Path, reader: str, vclock: dict[int, int]) -> None:
        done.append("acknowledged")
        real(spool, reader, vclock)

    monkeypatch.setattr(acknowledge_module, "sync_file_system", lambda path: done.append(str(path)))
    monkeypatch.setattr(acknowledge_module, "write_ack", write)
    for _ in range(3):
        acknowledge(BEGAN, STATE)
    assert done == [str(tmp_path / "w"), "acknowledged"], "and once where nothing more is passed"
    further = {UUID: OffsetEntry("a", "00000000000000000003.xlog", 0, {1: 5})}
    acknowledge(further, STATE)
    assert done[2:] == [str(tmp_path / "w"), "acknowledged"]


def test_what_is_not_on_the_disk_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge = made(tmp_path)

    def failing(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "w").mkdir()
    monkeypatch.setattr(acknowledge_module, "sync_file_system", failing)
    acknowledge(BEGAN, STATE)
    assert read_acks(tmp_path) == {}


def test_a_file_system_is_forced(tmp_path: Path) -> None:
    acknowledge_module.sync_file_system(tmp_path)
    with pytest.raises(OSError, match="No such file"):
        acknowledge_module.sync_file_system(tmp_path / "none")
