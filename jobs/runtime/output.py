"""Everything that a command prints: by these functions alone, so that names and texts of others are escaped."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from schemas.escaping import escaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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


def say_rows(rows: DataFrame, limit: int) -> None:
    """Print the first rows of a result to stdout as a table, as Spark shows it."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        rows.show(limit, truncate=False)
    say_lines(shown.getvalue().rstrip("\n").split("\n"))


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
