r"""Escapes names and texts of others: the one place that does, for what commands print and for all log lines.

A name of a space, a server's message or a value may have line breaks and escape sequences, which would forge lines of
a terminal. What is not printable is shown as Python shows it (`\x1b`).
"""

import logging
import sys
from typing import Any, TextIO


def escaped(text: str) -> str:
    """Return a text as one line without control characters and characters that change the writing direction."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def escaped_lines(text: str) -> str:
    """Return the lines of a traceback, escaped and indented, since a message in it may have line breaks of others."""
    return "\n".join(f"    {escaped(line)}" for line in text.replace("\t", "    ").split("\n"))


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


def escape_logs_without_handler() -> None:
    """Escape the warnings of a process that has set up no log, such as a Python process of Spark."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapingFormatter())
