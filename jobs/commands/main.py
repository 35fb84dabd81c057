"""The command `aggregator`: all commands in sections, and `main`, which the entry points under `jobs/` call.

The other modules of this package define options; `jobs` does the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.shell_completion import get_completion_class

from jobs.commands import fix, follow, ids, look, use
from jobs.runtime.command_line import CONTEXT_SETTINGS, command, run_command
from jobs.runtime.parts import DEFAULT_PARTS, PARTS

PROGRAM = "aggregator"
COMPLETION_VARIABLE = "_AGGREGATOR_COMPLETE"
"""The environment variable by which a shell asks click for completions."""

SHELLS = ("bash", "zsh", "fish")


@command("completion", 'eval "$(aggregator completion bash)"     # in ~/.bashrc')
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script by which a shell completes commands."""
    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(commands, {}, PROGRAM, COMPLETION_VARIABLE).source())


@command("setup", "aggregator setup", "aggregator setup s3 classes")
@click.argument("parts", metavar="[PART]...", nargs=-1, type=click.Choice([*PARTS]))
def setup(parts: tuple[str, ...]) -> int:
    """Prepare this installation: Delta's jars and compiled kernels, once, before the first run.

    Without it, each start downloads the jars, and the first batch compiles for a minute. What is there already is left
    as it is, and needs no network. Run it as the owner of the package; others use what it made.

    PART: `delta` and `kernels` are the default. `batch-kernels`: without those of the daemons. `s3`: the jars for
    s3a://. `classes`: an archive of Java's classes, 200 MB, with which commands start seconds earlier.
    """
    from jobs.setup import set_up

    return set_up(parts or DEFAULT_PARTS)


COMMANDS_BY_SECTION = {
    "Follow": (follow.run, follow.subscribe, follow.relay, follow.unpack),
    "Look": (
        *(
            look.doctor,
            look.plan,
            look.status,
            look.explain_batch,
            look.who,
            look.changes,
            look.cat,
            look.report,
            look.history,
            look.views,
        ),
        *(look.validate, look.prove, look.demo),
    ),
    "Use": (use.sql, use.wait, use.size),
    "Correct and maintain": (
        *(fix.backfill, fix.snapshot, fix.heal, fix.rebuild, fix.repair_gaps, fix.maintain),
    ),
    "Ids and copies": (ids.cluster, ids.rid),
    "Set up": (setup, completion),
}


class Commands(click.Group):
    """The group of all commands, listed by section."""

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their summaries, each section under its title."""
        width = max(len(name) for name in self.commands)
        for title, members in COMMANDS_BY_SECTION.items():
            with formatter.section(title):
                rows = [(one.name or "", one.get_short_help_str(100)) for one in members if not one.hidden]
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names in the order of the help, for completion and suggestions."""
        return list(self.commands)


@click.group(PROGRAM, cls=Commands, context_settings=CONTEXT_SETTINGS)
@click.version_option(package_name="tarantool-aggregator", prog_name=PROGRAM)
def commands() -> None:
    """Keep Delta tables equal to what several Tarantool replicasets hold, and ask who changed what.

    `aggregator COMMAND --help` shows a command's options with an example. Exit codes: 0 done, 1 failed, 2 wrong use or
    configuration, 130 and 143 stopped by Ctrl-C and SIGTERM.
    """


for _section in COMMANDS_BY_SECTION.values():
    for _command in _section:
        commands.add_command(_command)


def main(name: str | None = None, argv: Sequence[str] | None = None) -> int:
    """Run the command with a name, or `aggregator` itself if there is none, and return the exit code."""
    return run_command(
        commands if name is None else commands.commands[name], argv, PROGRAM if name is None else None
    )
