"""What every command has in common: `--config`, `--verbose`, one clear line for an error, the exit code.

Messages go to stderr, which spark-submit merges into its stdout. Exit codes: 0 done, 1 failed, 2 wrong use or
configuration, 130 and 143 stopped by Ctrl-C and SIGTERM.
Not here: what a command does, and its own options.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar, overload

from config.deployment import Config, load
from schemas.errors import AggregatorError, ConfigurationError, RidError

DONE, FAILED, MISUSED = 0, 1, 2

_Read = TypeVar("_Read")

_IN_WORKER = re.compile(r"schemas\.errors\.(\w+): (.+)")


class Stopped(BaseException):
    """SIGTERM has come: unwinds the stack as Ctrl-C does, so that locks and sessions are let go."""


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every command; the command adds its own.

    Parameters
    ----------
    description : str
        What the command does: the first line of its module's docstring.

    """
    arguments = argparse.ArgumentParser(description=description, allow_abbrev=False)
    arguments.add_argument("--config", required=True, metavar="FILE", help="the YAML configuration")
    arguments.add_argument("--verbose", action="store_true", help="show where in the code an error arose")
    return arguments


@overload
def run(
    main: Callable[[Config, argparse.Namespace], int | None],
    arguments: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
) -> int: ...


@overload
def run(
    main: Callable[[_Read, argparse.Namespace], int | None],
    arguments: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
    *,
    load: Callable[[str], _Read],
) -> int: ...


def run(
    main: Callable[[Any, argparse.Namespace], int | None],
    arguments: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
    *,
    load: Callable[[str], Any] = load,
) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    main : callable
        Gets the checked configuration and the parsed arguments, after both were found right; returns an exit
        code, or None for 0.
    arguments : ArgumentParser
        As made by `parser`.
    argv : sequence of str, optional
        Instead of the process's own arguments.
    load : callable
        Reads and checks what the command needs of the file; by default a whole deployment.

    """
    return run_alone(lambda options: main(load(options.config), options), arguments, argv)


def run_alone(
    main: Callable[[argparse.Namespace], int | None],
    arguments: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
) -> int:
    """Run a command that needs no configuration, as `run` does.

    Parameters
    ----------
    main : callable
        Gets the parsed arguments; returns an exit code, or None for 0.
    arguments : ArgumentParser
        With an option `--verbose`.
    argv : sequence of str, optional

    """
    try:
        options = arguments.parse_args(argv)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else MISUSED
    try:
        with _stopped_by_sigterm():
            return main(options) or DONE
    except (KeyboardInterrupt, Stopped) as stop:
        print("stopped", file=sys.stderr)
        return 130 if isinstance(stop, KeyboardInterrupt) else 143
    except Exception as error:
        return report(error, verbose=options.verbose)


def report(error: Exception, *, verbose: bool = False) -> int:
    """Print an error to stderr and return the exit code that it stands for.

    An error of ours is one clear line, also where Spark has wrapped the text of one that a worker or a batch
    raised. The traceback is shown on demand, and always for an error that nobody foresaw.
    """
    line = _line(error)
    if verbose or line is None:
        traceback.print_exception(error)
    print(f"error: {line or _unforeseen(error)}", file=sys.stderr)
    return MISUSED if isinstance(error, ConfigurationError | RidError) else FAILED


def _line(error: Exception) -> str | None:
    if isinstance(error, AggregatorError):
        return str(error)
    found = _IN_WORKER.findall(str(error))
    return f"{found[-1][1]} [{found[-1][0]}]" if found else None


def _unforeseen(error: Exception) -> str:
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first}"


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
