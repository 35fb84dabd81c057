"""The command line as users see it: help, imports, completion, old forms of calling."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from jobs.commands.backfill import backfill
from jobs.main import COMMANDS_BY_SECTION, COMPLETION_VARIABLE, commands, main

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "help"
"""To write them again: `python -m tests.jobs.test_commands`, then look at the difference."""

HEAVY = ("pyspark", "pyarrow", "numba", "pandas", "deltalake", "pydantic")


def members(group: click.Group) -> dict[str, click.Command]:
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: one for name, one in found.items() if one is not None}


def all_commands(
    group: click.Group = commands, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, group
    for name, one in members(group).items():
        if isinstance(one, click.Group):
            yield from all_commands(one, (*words, name))
        else:
            yield (*words, name), one


def help_of(words: tuple[str, ...]) -> str:
    done = CliRunner().invoke(commands, [*words, "--help"], prog_name="aggregator", terminal_width=100)
    assert done.exit_code == 0, done.output
    return str(done.output)


def file_of(words: tuple[str, ...]) -> Path:
    return GOLDEN / f"{'_'.join(('aggregator', *words))}.txt"


ALL = dict(all_commands())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_equals_the_golden_file(words: tuple[str, ...]) -> None:
    file = file_of(words)
    assert file.exists(), "python -m tests.jobs.test_commands"
    assert help_of(words) == file.read_text(encoding="utf-8"), "python -m tests.jobs.test_commands"


def test_no_golden_file_belongs_to_a_removed_command() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == {file_of(words).name for words in ALL}


@pytest.mark.parametrize("words", [words for words, one in ALL.items() if not isinstance(one, click.Group)])
def test_every_command_has_an_example_of_itself(words: tuple[str, ...]) -> None:
    _, _, examples = help_of(words).partition("\nExample")
    assert f"aggregator {' '.join(words)}" in examples or words[0] in ("demo", "completion")


def test_every_module_of_a_command_is_in_a_section() -> None:
    """A command that is defined, but in no section, cannot be called."""
    modules = {file.stem.replace("_", "-") for file in (ROOT / "jobs" / "commands").glob("*.py")}
    in_sections = [name for names in COMMANDS_BY_SECTION.values() for name in names]
    assert sorted(modules - {"--init--", "parameters"} | {"completion"}) == sorted(in_sections)


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("rid", "sync", "--help")], ids=" ".join)
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    """Heavy imports would slow down the help; the time itself depends on the machine."""
    script = (
        "import sys; from jobs.main import main; assert main(None, sys.argv[1:]) == 0;"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("heavy: []\n")
    assert time.monotonic() - began < 10


def test_python_m_aggregator_is_the_same_command() -> None:
    words = [sys.executable, "-m", "aggregator", "rid", "--help"]
    output = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "\n".join(output.split("\n")[:1]) == "Usage: aggregator rid [OPTIONS] COMMAND [ARGS]..."


@pytest.mark.parametrize(
    ("typed", "cword", "offered"),
    [("aggregator re", 1, "rebuild"), ("aggregator run --", 2, "--once"), ("aggregator rid c", 2, "compare")],
)
def test_a_shell_completes_commands_and_options(typed: str, cword: int, offered: str) -> None:
    environment = {
        **os.environ,
        COMPLETION_VARIABLE: "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(cword),
    }
    done = subprocess.run(
        [sys.executable, "-m", "aggregator"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"plain,{offered}" in done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shells_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    if shell == "bash" and subprocess.run(["bash", "-c", "true"], check=False).returncode:
        pytest.skip("no bash")
    assert main(None, ["completion", shell]) == 0
    assert COMPLETION_VARIABLE in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--heal", "a1"],
        ["--snapshot", "s", "--snapshot", "t", "--source", "a1"],
        ["--rebuild", "s", "--policy", "max", "--dry-run"],
    ],
)
def test_the_old_forms_of_backfill_are_still_read(words: list[str]) -> None:
    context = backfill.make_context("backfill", ["--config", "x.yaml", *words])
    given = {name: value for name, value in context.params.items() if value}
    assert set(given) == {"config", *(word.strip("-").replace("-", "_") for word in words if "--" in word)}


def test_a_misspelt_command_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(None, ["backfil"]) == 2
    assert "Usage: aggregator" in capsys.readouterr().err


def test_colours_are_for_terminals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(None, ["status", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "\x1b" not in capsys.readouterr().err


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.iterdir():
        old.unlink()
    for words_ in ALL:
        file_of(words_).write_text(help_of(words_), encoding="utf-8")
