"""What commands print and log: names and texts of others cannot forge a line of a terminal, nor colour it."""

import ast
import io
import json
import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.main import main
from jobs.runtime.command_line import log_to_stderr, print_error
from jobs.runtime.output import say, say_json
from schemas.errors import SourceError
from schemas.escaping import EscapingFormatter, escaped, escaping_handler
from sources.xlog.datasource import XlogDataSource
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


def test_log_lines_of_java(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    settings = java.java.util.Properties()
    settings.load(java.java.io.StringReader((ROOT / "conf" / "log4j2.properties").read_text()))
    core = java.org.apache.logging.log4j.core
    pattern = settings.getProperty("appender.console.layout.pattern")
    layout = core.layout.PatternLayout.newBuilder().withPattern(pattern).build()
    event = (
        core.impl.Log4jLogEvent.newBuilder()
        .setLoggerName("a.Logger")
        .setMessage(java.org.apache.logging.log4j.message.SimpleMessage(EVIL))
    )
    shown = layout.toSerializable(event.setThrown(java.java.lang.Exception(EVIL)).build())
    assert is_safe(shown.replace("\t", " "))
    first, *rest = shown.splitlines()
    assert first.endswith("Logger: x")
    assert len(rest) > 2
    assert all(line.startswith("    ") for line in rest)
    assert "    ! forged line??[31mred?[0m?2J?gnp?." in rest


def test_log_lines_of_a_python_process_of_spark(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    handler = logging.lastResort
    assert handler is not None
    before, handler.formatter = handler.formatter, None
    try:
        source = XlogDataSource({"path": str(tmp_path)})
        source.streamReader(source.schema())
        handler.handle(logging.makeLogRecord({"msg": EVIL, "levelno": logging.WARNING}))
    finally:
        handler.formatter = before
    shown = capsys.readouterr().err
    assert is_safe(shown)
    assert "\n! forged" not in shown


def hostile_deployment(folder: Path) -> Deployment:
    """Return a deployment with hostile names of spaces and fields, keys and values, a conflict, a hole and misfits."""
    fields = [("id", "string"), ("na\n\x1b[31m\u202eme", "string"), ("updated", "unsigned")]
    a = Node(folder, "a1").define(600, EVIL, fields).define(601, f"{EVIL}r").define(602, f"{EVIL}s", fields)
    a.put(600, EVIL, EVIL, 1).put(600, f"{EVIL}2", "\udcff", 1).put(602, EVIL, "\udcff", 1).close()
    missing = a.put(600, "k3", "lost", 1).close()
    a.put(600, "k4", EVIL, 1).close()
    missing.unlink()
    b = Node(folder, "b1").define(600, EVIL, fields).define(601, f"{EVIL}r", [("id", "string")])
    b.put(600, EVIL, "other", 2, at=5.0).put(601, EVIL).close()
    return Deployment.of(folder, a, b, spaces={"misfits": {f"{EVIL}s": "quarantine"}})


KEY = json.dumps(EVIL)
COMMANDS: Sequence[Sequence[str]] = [
    ["plan"],
    ["status"],
    ["explain-batch"],
    ["who", EVIL, KEY],
    ["changes", EVIL],
    ["sql", f"SELECT * FROM `{EVIL}`"],
    ["plan", f"--no{EVIL}"],
]
MORE_COMMANDS: Sequence[Sequence[str]] = [
    ["status", "--json"],
    ["doctor"],
    ["who", f"{EVIL}none", KEY],
    ["history", "--space", EVIL],
    ["history", "--space", f"{EVIL}none"],
    ["views"],
    ["cluster", "show"],
    ["cluster", "vclock", EVIL],
    ["wait", EVIL, "{1: 5}"],
    ["forget", EVIL, KEY],
    ["rebuild", EVIL, "--dry-run"],
    ["snapshot", f"{EVIL}none"],
    ["heal", EVIL],
    ["sql", f"SELECT '{EVIL}' AS `{EVIL}`"],
    ["sql", f"SELECT raise_error('{EVIL}')"],
    [EVIL],
    ["plan", "--keep", EVIL],
]


@pytest.mark.parametrize(
    "commands", [COMMANDS, pytest.param(MORE_COMMANDS, marks=pytest.mark.soak)], ids=["some", "others"]
)
@pytest.mark.spark
def test_commands_print_no_name_or_value_as_it_is(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    spark: SparkSession,  # noqa: ARG001
    commands: Sequence[Sequence[str]],
) -> None:
    deployment = hostile_deployment(tmp_path)
    file = tmp_path / "deployment.yaml"
    file.write_text(json.dumps(deployment.config().model_dump(mode="json")))
    options = ["--config", str(file)]
    raw = []

    def call(*words: str) -> str:
        main(None, words)
        shown = "".join(capfd.readouterr())
        if not is_safe(shown) or "\n! forged" in shown:
            raw.append((words, shown))
        return shown

    call("plan", *options)
    deployment.run()
    shown = {tuple(words): call(*words, *options) for words in commands}
    page = tmp_path / "page.html"
    assert page.as_uri() in call("report", *options, "--page", str(page))
    assert is_safe(page.read_text().partition("<script")[0])
    for node in ("a1", "b1"):
        call("cat", str(tmp_path / node))
        call("cat", str(tmp_path / node), "--json")
    assert raw == []
    for words, text in shown.items():
        if words[0] == "sql" and "AS" not in words[1]:
            *_, line = text.splitlines()
            assert line.startswith("error: [")
            assert "! forged line" in line
            assert len(text) < 1000


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
