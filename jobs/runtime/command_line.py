"""Common parts of every command: `--config`, `--verbose`, Spark's options, errors, the exit code, running as a daemon.

Messages go to stderr, which spark-submit merges into its stdout. Exit codes: 0 done, 1 failed, 2 wrong use or
configuration, 130 and 143 stopped by Ctrl-C and SIGTERM. Imports neither Spark nor pyarrow, so that `--help` and shell
completion are fast: a command imports its work when it is called. `jobs.commands` has the commands and their own
options.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from jobs.runtime.error_text import error_text, first_error, other_error_text
from jobs.runtime.output import say, say_lines
from jobs.runtime.steps import STEPS_LOGGER
from schemas.errors import ConfigurationError, RidError
from schemas.escaping import escape_logs_without_handler, escaped_lines, escaping_handler

if TYPE_CHECKING:
    import asyncio

    from config.deployment import Config

DONE, FAILED, MISUSED = 0, 1, 2

PENDING = 6
"""Exit code of `run --once`: all that could be done is done, but something waits, or a source was not read."""

VERBOSE_KEY = "jobs.verbose"
"""Key of click's context for `--verbose`."""

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Stopped(BaseException):
    """Raised on SIGTERM: unwinds the stack as Ctrl-C does, so that locks and sessions are released."""


class StoppedInBatch(Stopped):
    """Raised if the second signal comes while a batch is running; its cause is the exception of that signal."""


class JobCommand(click.Command):
    """A command with examples in its help, whose errors are one line and an exit code."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **{"context_settings": CONTEXT_SETTINGS, **settings})
        self.examples = examples

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples unchanged."""
        _write_examples(self.examples, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and return its exit code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            return _end_without_reader()
        except (KeyboardInterrupt, Stopped) as stop:
            return _report_stop(stop)
        except Exception as error:
            return print_error(error, verbose=is_verbose())


class ExampleGroup(click.Group):
    """A group of commands with examples in its help."""

    examples: Sequence[str] = ()

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples unchanged."""
        _write_examples(self.examples, formatter)


def _write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    if examples:
        with formatter.section("Examples" if len(examples) > 1 else "Example"):
            for line in examples:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def command(name: str, *examples: str, **settings: Any) -> Callable[[Callable[..., Any]], JobCommand]:
    """Return a decorator that turns a function into a command; its docstring is the help.

    Args:
        *examples: Command lines, shown at the end of the help.
        **settings: Passed to `click.command`.
    """

    def to_command(function: Callable[..., Any]) -> JobCommand:
        found = click.command(name, cls=JobCommand, examples=examples, **settings)(function)
        found.params.append(
            click.Option(
                ["--verbose", "-v"],
                is_flag=True,
                expose_value=False,
                callback=lambda ctx, _, value: ctx.meta.__setitem__(VERBOSE_KEY, value),
                help="Show where in the code an error arose.",
            )
        )
        return found

    return to_command


def is_verbose() -> bool:
    """Return whether the running command was called with `--verbose`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(VERBOSE_KEY))


config_option = click.option(
    "--config", required=True, metavar="FILE", type=click.Path(), help="The YAML configuration."
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def load_deployment(file: str) -> Config:
    """Read and check the configuration of a deployment."""
    from config.deployment import load

    return load(file)


def spark_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--master` and `--conf`, which are passed to the Spark session of the command."""

    @click.option("--master", metavar="URL", help="Where Spark runs; default: this machine, all cores.")
    @click.option(
        *("--conf", "settings"), multiple=True, metavar="K=V", help="A setting of Spark; may be repeated."
    )
    @wraps(function)
    def called(*args: Any, master: str | None, settings: Sequence[str], **options: Any) -> Any:
        if master is not None or settings:
            from jobs.runtime.session import pass_to_spark

            pass_to_spark(master, settings)
        return function(*args, **options)

    return called


def print_result(result: str, next_step: str | None = None) -> None:
    """Print the last line of a command, what was done and the next step, to stderr: programs read stdout."""
    say(result, err=True, bold=True, end=next_step is None)
    if next_step is not None:
        say(f" – next: {next_step}", err=True)


def run_command(command_: click.Command, argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run a command, or a group of commands, and return the exit code."""
    escape_logs_without_handler()
    try:
        with _stopping_on_sigterm(), _printing_steps_to_stderr():
            return command_.main(argv, prog_name=prog, standalone_mode=False) or DONE
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say_lines(shown.getvalue().rstrip("\n").split("\n"), err=True)
        return error.exit_code
    except (click.Abort, Stopped) as stop:
        return _report_stop(stop)


def _end_without_reader() -> int:
    """End well although no program reads stdout any more, as behind `| head -1`."""
    with suppress(OSError, ValueError):  # stdout may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def _report_stop(stop: BaseException) -> int:
    """Say that the command was stopped, and return the exit code; end the process at once if it runs a batch."""
    say("stopped", err=True)
    if not isinstance(stop, StoppedInBatch):
        return 143 if isinstance(stop, Stopped) else 130
    # A normal exit would remove the interpreter's state first. Then the batch's thread, as soon as it returns from
    # native code, aborts the process with a dump of the interpreter.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(143 if isinstance(stop.__cause__, Stopped) else 130)


def print_error(error: Exception, *, verbose: bool = False, line: str | None = None) -> int:
    """Print an error to stderr and return its exit code.

    An error of the aggregator, or of a full disk, is printed as one line, even if Spark has wrapped it in another
    error. Another one is printed as `line`, or without it with its traceback, as all are with `verbose`.
    """
    line = error_text(error) or line
    if verbose or line is None:
        say_lines(escaped_lines("".join(traceback.format_exception(error)).rstrip()).split("\n"), err=True)
    say("error:", err=True, end=False, fg="red")
    say(f" {line or other_error_text(error)}", err=True)
    return MISUSED if isinstance(first_error(error), ConfigurationError | RidError) else FAILED


@contextmanager
def _printing_steps_to_stderr() -> Iterator[None]:
    """Print the log lines of long steps (`log_step`) to stderr while the context is open.

    Under spark-submit it does nothing: spark-submit writes the stderr of Python to stdout, which is for results.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        yield
        return
    steps, handler = logging.getLogger(STEPS_LOGGER), escaping_handler()
    before = steps.level, steps.propagate
    steps.setLevel(logging.INFO)
    steps.propagate = False
    steps.addHandler(handler)
    try:
        yield
    finally:
        steps.removeHandler(handler)
        steps.setLevel(before[0])
        steps.propagate = before[1]


@contextmanager
def _stopping_on_sigterm() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def make_new_files_private() -> None:
    """Make this process's new files and folders readable by its user only, since they contain rows of spaces."""
    os.umask(0o077)


def log_to_stderr(*, verbose: bool) -> None:
    """Write log messages with their times to stderr; debug messages only with `verbose`."""
    level = logging.DEBUG if verbose else logging.INFO
    handler = escaping_handler(pattern="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.basicConfig(level=level, handlers=[handler])


async def wait_until_stopped(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until SIGTERM, SIGINT or the end of a task; then cancel the other tasks, and raise its error."""
    import asyncio  # most commands do without

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    waiting = asyncio.create_task(stop.wait())
    done, rest = await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        error = task.exception()
        if error is not None:
            raise error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
