"""Exit codes and messages of a command: right use, wrong use, errors of ours and of Spark's workers."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from config.deployment import Config
from jobs.cli import parser, report, run
from schemas.errors import ConfigurationError, LockError, XlogChecksumError

GOOD = "warehouse: wh\ncheckpoint: cp\nsources: [{name: a1, path: a1}]\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    return file


def done(config: Config, options: argparse.Namespace) -> None:
    print(config.sources[0].name, options.once)


def arguments() -> argparse.ArgumentParser:
    made = parser("Does a thing.")
    made.add_argument("--once", action="store_true")
    return made


def fail(error: BaseException, config: Path, *more: str) -> int:
    def main(_config: Config, _options: argparse.Namespace) -> None:
        raise error

    return run(main, arguments(), ["--config", str(config), *more])


def test_main_gets_the_configuration_and_its_options(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(done, arguments(), ["--config", str(config), "--once"]) == 0
    assert capsys.readouterr().out == "a1 True\n"


def test_main_may_choose_the_exit_code(config: Path) -> None:
    assert run(lambda _config, _options: 3, arguments(), ["--config", str(config)]) == 3


def test_the_processs_own_arguments(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["job", "--config", str(config)])
    assert run(done, arguments()) == 0


@pytest.mark.parametrize("argv", [[], ["--config"], ["--conf", "x"], ["--config", "x", "--no-such"]])
def test_wrong_use_is_2_and_says_how(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(done, arguments(), argv) == 2
    assert "usage:" in capsys.readouterr().err


def test_help_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(done, arguments(), ["--help"]) == 0
    assert "Does a thing." in capsys.readouterr().out


def test_a_wrong_configuration_is_2_and_main_never_runs(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(GOOD + "on_gap: wait\n")
    assert run(done, arguments(), ["--config", str(config)]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err == (
        f"error: 'wait' is refused; allowed: hold, skip (file {config}, line 4, path on_gap)\n"
    )


def test_an_error_of_ours_is_1_and_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(LockError("held", warehouse="/w", advice="wait"), config) == 1
    assert capsys.readouterr().err == "error: held (warehouse /w): wait\n"


def test_verbose_shows_where_it_arose(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(LockError("held"), config, "--verbose") == 1
    seen = capsys.readouterr().err
    assert "Traceback" in seen
    assert seen.endswith("error: held\n")


def test_an_error_nobody_foresaw_shows_its_traceback(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail(KeyError("gone"), config) == 1
    seen = capsys.readouterr().err
    assert "Traceback" in seen
    assert seen.endswith("error: KeyError: 'gone'\n")


def test_a_configuration_that_main_finds_wrong_is_2(config: Path) -> None:
    assert fail(ConfigurationError("no such source"), config) == 2


def test_ctrl_c_is_130(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(KeyboardInterrupt(), config) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_sigterm_unwinds_and_is_143(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = []

    def main(_config: Config, _options: argparse.Namespace) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            left.append("lock")

    before = signal.getsignal(signal.SIGTERM)
    assert run(main, arguments(), ["--config", str(config)]) == 143
    assert left == ["lock"]
    assert capsys.readouterr().err == "stopped\n"
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.spark
def test_an_error_of_ours_from_a_worker_is_one_line(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise XlogChecksumError("the checksum differs", file="0.xlog", offset=12, advice="copy it again")

    with pytest.raises(Exception, match="the checksum differs") as caught:
        spark.range(1).mapInArrow(broken, "id BIGINT").collect()
    assert report(caught.value) == 1
    assert capsys.readouterr().err == (
        "error: the checksum differs (file 0.xlog, offset 12): copy it again [XlogChecksumError]\n"
    )
