"""What commands print and log: names and texts of others cannot forge a line of a terminal, nor colour it."""

import ast
import io
import json
import logging
import subprocess
from pathlib import Path

import pytest

from jobs.plan import show as show_plan
from jobs.runtime.command_line import log_to_stderr, print_error
from jobs.runtime.output import EscapingFormatter, escaped, escaping_handler, say, say_json
from jobs.status import show as show_status
from schemas.errors import SourceError
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment

EVIL = "x\n! forged line\r\x1b[31mred\x1b[0m\x9b2J\u202egnp\u2028."
ROOT = Path(__file__).resolve().parents[2]
MAY_PRINT = {"jobs/runtime/output.py", "jobs/main.py"}
"""The second prints the script of completion, which is a program's text."""


def is_safe(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def test_a_line_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert escaped(EVIL).isprintable()
    assert escaped("Счёта é 表") == "Счёта é 表"
    say(EVIL)
    say_json({EVIL: [EVIL]})
    line, document = capsys.readouterr().out.splitlines()
    assert line == "x\\n! forged line\\r\\x1b[31mred\\x1b[0m\\x9b2J\\u202egnp\\u2028."
    assert document.isprintable()
    assert json.loads(document) == {EVIL: [EVIL]}


def test_log_lines_and_tracebacks() -> None:
    stream = io.StringIO()
    logger = logging.getLogger("test_output")
    handler = escaping_handler(stream)
    logger.addHandler(handler)
    try:
        logger.warning("space %s", EVIL)
        try:
            raise ValueError(EVIL)
        except ValueError:
            logger.exception("failed")
    finally:
        logger.removeHandler(handler)
    assert is_safe(stream.getvalue())
    assert stream.getvalue().startswith("space x\\n! forged")
    assert "Traceback" in stream.getvalue()


def test_the_daemons_log_and_errors_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        log_to_stderr(verbose=False)
        assert [type(handler.formatter) for handler in root.handlers] == [EscapingFormatter]
    finally:
        root.handlers = before
    print_error(SourceError("gone", source=EVIL))
    print_error(ValueError(EVIL))
    assert is_safe(capsys.readouterr().err)


def test_the_name_of_a_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = Node(tmp_path, "a1").define(600, EVIL).put(600, 1, "first", 1, 1)
    a.close()
    b = Node(tmp_path, "b1").define(600, EVIL, [("id", "string"), ("name", "string")])
    b.close()
    deployment = Deployment.of(tmp_path, a, b)
    config = deployment.config()
    show_plan(config, "deployment.yaml", is_json=False)
    deployment.run()
    show_status(config, as_json=False)
    show_status(config, as_json=True)
    shown = "".join(capsys.readouterr())
    assert is_safe(shown)
    assert "\n! forged" not in shown
    assert "\\x1b[31m" in shown


PRINTS = (
    "print",
    "click.echo",
    "click.secho",
    "traceback.print_exception",
    "sys.stdout.write",
    "sys.stdout.buffer.write",
)


def test_commands_print_by_these_functions_alone() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "jobs/*.py", "observe/*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [
        f"{file}:{node.lineno}"
        for file in listed.stdout.split()
        if file not in MAY_PRINT
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTS
    ]
    assert found == []
