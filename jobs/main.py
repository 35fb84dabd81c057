"""The command `aggregator`: the table of all commands, and `main`, which the entry points under `jobs/` call.

A command is a module of `jobs.commands`, and an object in it, both with the command's name. It has the options and the
help; its work is imported when it is called.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from jobs.runtime.command_line import CONTEXT_SETTINGS, command, run_command

PROGRAM = "aggregator"
COMPLETION_VARIABLE = "_AGGREGATOR_COMPLETE"
"""The environment variable by which a shell asks click for completions."""

SHELLS = ("bash", "zsh", "fish")

COMMANDS_BY_SECTION: Mapping[str, Sequence[str]] = {
    "Follow": ("run", "subscribe", "relay", "unpack"),
    "Look": (
        *("doctor", "plan", "status", "explain-batch", "who", "changes", "cat", "report", "history", "views"),
        *("validate", "prove", "demo"),
    ),
    "Use": ("sql", "wait", "size"),
    "Correct and maintain": ("backfill", "snapshot", "heal", "rebuild", "repair", "maintain", "forget"),
    "Ids and copies": ("cluster", "rid"),
    "Set up": ("setup", "completion"),
}
"""The names of all commands, in the order of the help."""


class Commands(click.Group):
    """The group of all commands; each is imported when it is needed."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their summaries, each section under its title."""
        width = max(map(len, self.list_commands(ctx)))
        for title, names in COMMANDS_BY_SECTION.items():
            with formatter.section(title):
                shown = (one for name in names if (one := self.get_command(ctx, name)) and not one.hidden)
                rows = [((one.name or "").ljust(width), one.get_short_help_str(100)) for one in shown]
                formatter.write_dl(rows)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the help, for completion and suggestions."""
        return [name for names in COMMANDS_BY_SECTION.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            name = cmd_name.replace("-", "_")
            self.add_command(getattr(import_module(f"jobs.commands.{name}"), name))
        return self.commands.get(cmd_name)

    def members(self) -> Iterator[click.Command]:
        """Yield all commands."""
        context = click.Context(self)
        yield from filter(None, (self.get_command(context, name) for name in self.list_commands(context)))


@click.group(PROGRAM, cls=Commands, context_settings=CONTEXT_SETTINGS)
@click.version_option(package_name="tarantool-aggregator", prog_name=PROGRAM)
def commands() -> None:
    """Keep Delta tables equal to what several Tarantool replicasets hold, and ask who changed what.

    `aggregator COMMAND --help` shows a command's options with an example. Exit codes: 0 done, 1 failed, 2 wrong use or
    configuration, 130 and 143 stopped by Ctrl-C and SIGTERM.
    """


@commands.add_command
@command("completion", 'eval "$(aggregator completion bash)"     # in ~/.bashrc')
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script by which a shell completes commands."""
    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(commands, {}, PROGRAM, COMPLETION_VARIABLE).source())


def main(name: str | None = None, argv: Sequence[str] | None = None) -> int:
    """Run the command with a name, or `aggregator` itself if there is none, and return the exit code."""
    if sys.path[:1] == [str(Path(__file__).parent)]:
        del sys.path[0]  # a script of `jobs/` was started: its neighbours are no modules of their own
    one = commands if name is None else commands.get_command(click.Context(commands), name)
    if one is None:
        raise ValueError(f"there is no command {name}")
    return run_command(one, argv, PROGRAM if name is None else None)
