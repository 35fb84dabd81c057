r"""Everything that a command prints or logs, and the one place where names and texts of others are escaped.

A name of a space, a server's message or a value may have line breaks and escape sequences, which would forge lines of
a terminal. So commands print by these functions alone: what is not printable is shown as Python shows it (`\x1b`).
"""

import json
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import click


def escaped(text: str) -> str:
    """Return a text as one line without control characters and characters that change the writing direction."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def escaped_lines(text: str) -> str:
    """Return a text whose line breaks are ours, such as a traceback, with each line escaped."""
    return "\n".join(map(escaped, text.replace("\t", "    ").split("\n")))


def say(text: object = "", *, err: bool = False, end: bool = True, **style: Any) -> None:
    """Print one line to stdout, or to stderr; `style` is that of `click.style`."""
    line = escaped(str(text))
    if "NO_COLOR" in os.environ:  # https://no-color.org
        style = {}
    click.echo(click.style(line, **style) if style else line, err=err, nl=end)


def say_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print some lines to stdout, or to stderr."""
    for line in lines:
        say(line, err=err)


def say_json(value: Any) -> None:
    """Print a value to stdout as one line of JSON; what JSON does not know is printed as text."""
    say_json_text(json.dumps(value, ensure_ascii=False, default=str))


def say_json_text(text: str) -> None:
    """Print a line of JSON to stdout."""
    click.echo(_escaped_json(text))


def _escaped_json(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def write_line(line: str, *, is_json: bool = False) -> None:
    """Write a line to stdout, in UTF-8 and without a flush: for commands that print many."""
    shown = _escaped_json(line) if is_json else escaped(line)
    sys.stdout.buffer.write(f"{shown}\n".encode())


class EscapingFormatter(logging.Formatter):
    """Formats a log record as one escaped line; the lines of a traceback follow."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the record's line."""
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return a traceback."""
        return escaped_lines(super().formatException(ei))


def escaping_handler(stream: TextIO | None = None, pattern: str | None = None) -> logging.Handler:
    """Return a handler that writes escaped lines to a stream, by default stderr."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(EscapingFormatter(pattern))
    return handler
