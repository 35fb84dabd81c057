"""A command says on stderr which long step begins; elsewhere these lines are quiet."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jobs.runtime.command_line import command, run_command
from jobs.runtime.progress import StreamProgress
from jobs.runtime.steps import log_step
from pipeline.commit.batch import BatchName


def test_a_command_shows_its_steps_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    @command("work")
    def work() -> None:
        """Do a thing."""
        log_step("reading 34 tables")
        print('{"json": 1}')

    for _ in range(2):
        assert run_command(work, []) == 0
        assert capsys.readouterr() == ('{"json": 1}\n', "reading 34 tables\n")


def test_steps_are_quiet_outside_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    log_step("reading 34 tables")
    assert capsys.readouterr() == ("", "")


def test_only_the_first_batch_of_a_run_is_said_when_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[int] = []

    @contextmanager
    def around(name: BatchName) -> Iterator[None]:
        yield
        done.append(name.batch_id)

    @command("work")
    def work() -> None:
        """Do a thing."""
        with StreamProgress(()) as progress:
            said = progress.log_first_batch(around)
            for number in (7, 8):
                with said(BatchName("query", number)):
                    pass

    assert run_command(work, []) == 0
    assert done == [7, 8]
    assert capsys.readouterr().err == "reading and writing batch 7, the first one\n"
