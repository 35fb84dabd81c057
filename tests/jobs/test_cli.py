"""Exit codes and messages of a command: right use, wrong use, our own errors and those of Spark's workers."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.runtime.command_line import command, config_option, load_deployment, print_error, run_command
from schemas.errors import ConfigurationError, LockError, XlogChecksumError

GOOD = "warehouse: wh\ncheckpoint: cp\nsources: [{name: a1, path: a1}]\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    return file


@command("work", "aggregator work --config x.yaml --once")
@config_option
@click.option("--once", is_flag=True)
def done(config: str, once: bool) -> None:
    """Do a thing."""
    print(load_deployment(config).sources[0].name, once)


def fail(error: BaseException, config: Path, *more: str) -> int:
    @command("work")
    @config_option
    def main(config: str) -> None:
        load_deployment(config)
        raise error

    return run_command(main, ["--config", str(config), *more])


def test_main_gets_the_configuration_and_its_options(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(done, ["--config", str(config), "--once"]) == 0
    assert capsys.readouterr().out == "a1 True\n"


def test_main_may_choose_the_exit_code(config: Path) -> None:
    assert run_command(command("three")(config_option(lambda config: 3)), ["--config", str(config)]) == 3  # noqa: ARG005


def test_the_processs_own_arguments(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["job", "--config", str(config)])
    assert run_command(done) == 0


@pytest.mark.parametrize("argv", [[], ["--config"], ["--conf", "x"], ["--config", "x", "--no-such"]])
def test_wrong_use_is_2_and_says_how(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(done, argv) == 2
    assert capsys.readouterr().err.startswith(("Usage:", "Error:"))


def test_help_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(done, ["--help"]) == 0
    assert "Do a thing." in (output := capsys.readouterr().out)
    assert output.endswith("\nExample:\n  aggregator work --config x.yaml --once\n")


def test_a_wrong_configuration_is_2_and_main_never_runs(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(GOOD + "on_gap: wait\n")
    assert run_command(done, ["--config", str(config)]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err == (
        f"error: 'wait' is refused; allowed: hold, skip (file {config}, line 4, path on_gap)\n"
    )


def test_an_error_of_ours_is_1_and_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(LockError("held", warehouse="/w", advice="wait"), config) == 1
    assert capsys.readouterr().err == "error: held (warehouse /w): wait\n"


def test_verbose_shows_the_traceback(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(LockError("held"), config, "--verbose") == 1
    seen = capsys.readouterr().err
    assert "Traceback" in seen
    assert seen.endswith("error: held\n")


def test_an_unexpected_error_shows_its_traceback(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
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

    @command("work")
    @config_option
    def main(config: str) -> None:
        del config
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            left.append("lock")

    before = signal.getsignal(signal.SIGTERM)
    assert run_command(main, ["--config", str(config)]) == 143
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
    assert print_error(caught.value) == 1
    assert capsys.readouterr().err == (
        "error: the checksum differs (file 0.xlog, offset 12): copy it again [XlogChecksumError]\n"
    )


THREAD_THAT_DOES_NOT_END = """
import sys, threading
from jobs.runtime.command_line import Stopped, StoppedInBatch, command, run_command

@command("work")
def work():
    threading.Thread(target=threading.Event().wait).start()
    print("rows", end="")
    raise StoppedInBatch from {cause}

sys.exit(run_command(work, []))
"""


@pytest.mark.parametrize(("cause", "exit_code"), [("Stopped()", 143), ("KeyboardInterrupt()", 130)])
def test_a_stop_in_a_batch_does_not_wait_for_its_threads(cause: str, exit_code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", THREAD_THAT_DOES_NOT_END.format(cause=cause)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (exit_code, "rows", "stopped\n")
