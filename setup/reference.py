"""Writes the reference pages from the code: commands, configuration, tables, metrics, conditions and options.

    python setup/reference.py       # or `make reference`: docs/reference/*.md

They come from the commands' own options, the configuration's models, the tables' schemas, the metrics themselves, the
list of conditions and the options of the data source. A test compares the pages with them.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
from prometheus_client.metrics_core import Metric
from pyspark.sql.types import DataType

from config.json_schema import schemas
from jobs.main import COMMANDS_BY_SECTION, commands
from observe.doctor import doctor
from observe.doctor.masters import ADVICE
from observe.metrics.stream_metrics import StreamMetrics
from observe.planned_changes import SIGN_AND_MEANING
from pipeline.replication_out.service import ReplicationMetrics
from schemas import descriptions
from schemas.conditions import CONDITIONS
from schemas.iproto import SystemSpace
from schemas.tables import SYSTEM_TABLES, VALIDATIONS, VERSION_COLUMNS, XROW
from schemas.units import size_text
from sources.relay.server import RelayMetrics
from sources.subscribe.daemon import DaemonMetrics
from sources.xlog import options
from sources.xlog.options import OPTION_PARSERS
from warehouse.sql_functions import SQL_FUNCTIONS

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
WRITTEN = "Written by `make reference`; do not edit it.\n"

Column = tuple[str, DataType]

MEBIBYTE = 1 << 20

COMMON_OPTIONS = ("--config", "--json", "--master", "--conf", "--verbose", "--help")
"""Options that mean the same in each command that has them."""


def row(*cells: str) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table(*heads: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table; nothing without rows."""
    lines = [row(*cells) for cells in rows]
    return row(*heads) + "|---" * len(heads) + "|\n" + "".join(lines) + "\n" if lines else ""


# Commands


def commands_page(title: str, *sections: str) -> str:
    """Return the page of some sections of the commands."""
    text = f"# {title}\n\n{WRITTEN}"
    if "Follow" in sections:
        text += (
            "[The other commands](commands-more.md). `aggregator COMMAND --help` shows the same in a terminal.\n\n"
            "Options of many commands: `--config FILE`, the YAML configuration; `--json`, for programs; `--master URL` "
            "and `--conf K=V`, where Spark runs and its settings; `-v`, `--verbose`, the traceback of an error.\n"
        )
    for section in sections:
        text += f"\n## {section}\n\n"
        for command in commands.members():
            if command.name in COMMANDS_BY_SECTION[section] and not command.hidden:
                text += "".join(_command(command, f"aggregator {command.name}"))
    return text.rstrip("\n") + "\n"


def _command(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    arguments = " ".join(
        argument.make_metavar(context) for argument in command.params if isinstance(argument, click.Argument)
    )
    yield f"### {name}\n\n"
    yield _paragraphs(command.help or "") + "\n\n"
    yield from (f"    {line}\n" for line in getattr(command, "examples", ()) or (f"{name} {arguments}",))
    yield "\n"
    options = [one for one in command.params if isinstance(one, click.Option)]
    yield table("option", "", rows=(_option(one, context) for one in options if _is_own(one)))
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _command(inner, f"{name} {inner.name}")


def _is_own(option: click.Option) -> bool:
    return not {*option.opts} & {*COMMON_OPTIONS} and not option.hidden


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    names, text = option.get_help_record(context) or ("", "")
    return f"`{names}`", " ".join(text.split())


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


# Configuration


def configuration_page() -> str:
    """Return the page of the configuration of a deployment."""
    schema = schemas()["schema.json"]
    own = {name: value for name, value in schema["properties"].items() if name not in ("subscribe", "relay")}
    return (
        f"# Configuration\n\n{WRITTEN}"
        "One YAML file. `conf/demo.yaml` has every key with its default, and "
        "`conf/schema.json` completes and checks the file in an editor. The sections "
        "`subscribe` and `relay` are those of the [daemons](configuration-live.md).\n\n"
        + "".join(_model(own, schema, ""))
    ).rstrip("\n") + "\n"


def live_page() -> str:
    """Return the page of the configuration of the daemons."""
    schema = schemas()["live.schema.json"]
    own = {name: schema["properties"][name] for name in ("max_block_bytes", "subscribe", "relay")}
    return (
        f"# Configuration of the daemons\n\n{WRITTEN}"
        "Sections of the deployment's file, or a file of their own; `conf/live.yaml` has every "
        "key.\n\n" + "".join(_model(own, schema, ""))
    ).rstrip("\n") + "\n"


def _model(properties: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the table of a model's keys, then the models of its sections."""
    yield table("key", "default", "", rows=(_key(name, value) for name, value in properties.items()))
    shown: list[Any] = []
    for name, value in properties.items():
        for part in _models(value, schema):
            inner = f"{path}{name}"
            yield f"## {inner}\n\n{part['description']}\n\n"
            if part in shown:
                yield "The same keys.\n\n"
            else:
                yield from _model(part["properties"], schema, f"{inner}.")
            shown.append(part)


def _models(value: Any, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the models that a key's value may be, also as an element of a list or map."""
    for part in _parts(value):
        if "$ref" in part:
            model = schema["$defs"][part["$ref"].rpartition("/")[2]]
            if "properties" in model:
                yield model


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for name in ("anyOf", "oneOf", "allOf"):
            for part in value.get(name, ()):
                yield from _parts(part)
        for name in ("items", "additionalProperties"):
            yield from _parts(value.get(name))


def _key(name: str, value: Mapping[str, Any]) -> tuple[str, str, str]:
    allowed = [f"`{one}`" for part in _parts(value) for one in part.get("enum", ())]
    text = value.get("description", "")
    if allowed and not all(one.strip("`") in text for one in allowed):
        text += f" Allowed: {', '.join(allowed)}."
    return f"`{name}`", _default(value), text


def _default(value: Mapping[str, Any]) -> str:
    if "default" not in value:
        return "required"
    default = value["default"]
    if isinstance(default, dict | list) or default is None:
        return "" if not default else "see below"
    if isinstance(default, int) and default >= MEBIBYTE:
        return f"`{size_text(default)}`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


# Tables


def tables_page() -> str:
    """Return the page of the tables and their columns."""
    types = {name: kind.simpleString() for name, kind in VERSION_COLUMNS}
    rows = [(f"`{name}`", types.get(name, ""), text) for name, text in descriptions.VERSION_COLUMNS.items()]
    own = {**SYSTEM_TABLES, "_validations": VALIDATIONS}
    text = (
        f"# Tables\n\n{WRITTEN}"
        "Every table is Delta, at `<warehouse>/<database>.db/<table>`. [semantics.md](../semantics.md) says what they "
        "mean.\n\n## The table of a space\n\nOne column for each field of the format, by its "
        "[type](../columns.md#types), and:\n\n"
    )
    text += table("column", "type", "", rows=rows)
    text += "## A row of the log\n\nColumns of `_changelog` and `_pending`.\n\n"
    text += table("column", "type", "", rows=_columns(XROW))
    for name, described in descriptions.TABLES.items():
        if name in own:
            fields = [(one.name, one.dataType) for one in own[name].fields]
            is_row = name in ("_changelog", "_pending")
            text += (
                f"## {name}\n\n{described}{' Also the columns of a row of the log.' if is_row else ''}\n\n"
            )
            text += table("column", "type", "", rows=_columns(_without(fields, XROW if is_row else ())))
    return text.rstrip("\n") + "\n"


def functions_page() -> str:
    """Return the page of the functions for SQL and of Tarantool's system spaces."""
    text = f"# Functions for SQL, system spaces\n\n{WRITTEN}\n"
    text += "## Functions for SQL\n\n[How to get them](../sql.md#functions).\n\n"
    calls = ((name, *described.partition(": ")) for name, described in SQL_FUNCTIONS.items())
    text += table("function", "result", rows=((f"`{name}{call}`", result) for name, call, _, result in calls))
    text += "## System spaces\n\nNone has a table; all of their rows are in `_changelog`.\n\n"
    text += table("space", "id", "what its rows do", rows=_system_spaces())
    return text.rstrip("\n") + "\n"


def _without(fields: Iterable[Column], without: Iterable[Column]) -> list[Column]:
    """Return the columns that are not in another list."""
    names = {name for name, _ in without}
    return [one for one in fields if one[0] not in names]


def _columns(fields: Iterable[Column]) -> Iterator[tuple[str, str, str]]:
    for name, kind in fields:
        yield f"`{name}`", kind.simpleString(), descriptions.COLUMNS.get(name, "")


def _system_spaces() -> Iterator[tuple[str, str, str]]:
    for space in SystemSpace:
        yield f"`_{space.name.lower()}`", str(int(space)), descriptions.SYSTEM_SPACES.get(space, "nothing")


# Metrics


def metrics_page() -> str:
    """Return the page of Prometheus' metrics."""
    text = f"# Metrics\n\n{WRITTEN}[alerts.md](../alerts.md) says what to watch.\n"
    for title, found in _families().items():
        text += f"\n## {title}\n\n"
        text += table("metric", "", rows=found)
    return text.rstrip("\n") + "\n"


def _families() -> dict[str, list[tuple[str, str]]]:
    service: Any = SimpleNamespace(mark=None, lag=0.0, error=None, left_out=())
    stream = StreamMetrics(None, None)
    # A family that has no sample yet does not know its labels, but its collector does.
    labels = {
        getattr(one, "_name", ""): getattr(one, "_labelnames", ())
        for one in (*vars(stream).values(), *vars(stream.costs).values())
    }
    return {
        title: [_metric(one, labels.get(one.name)) for one in found]
        for title, found in (
            ("The stream: `metrics.status`", stream.collect()),
            ("The daemon: `subscribe.status`", DaemonMetrics([]).collect()),
            ("The relay: `relay.status`", RelayMetrics([]).collect()),
            (
                "The decided tables: `relay.status` of `relay --aggregated`",
                ReplicationMetrics(service).collect(),
            ),
        )
    }


def _metric(metric: Metric, labels: Iterable[str] | None) -> tuple[str, str]:
    names = ", ".join(labels or getattr(metric, "_labelnames", ()) or ())
    suffix = "_total" if metric.type == "counter" else ""
    return f"`{metric.name}{suffix}{'{' + names + '}' if names else ''}`", metric.documentation


# Conditions


def conditions_page() -> str:
    """Return the page of the conditions, each with the anchor that its alert names."""
    rows = (
        (
            f'<a id="alert-{one.alert.lower()}"></a>`{one.name}`, `{one.alert}`',
            str(one.severity),
            one.means,
            f"{one.found}{'; only by Prometheus' if one.is_alert_only else ''}",
            one.advice.replace("](", "](../"),
        )
        for one in CONDITIONS.values()
    )
    text = f"# Conditions and alerts\n\n{WRITTEN}[alerts.md](../alerts.md#conditions) says where each is seen.\n\n"
    text += table("condition, alert", "severity", "means", "found by", "what to do", rows=rows)
    return text.rstrip("\n") + "\n"


# Names


def names_page() -> str:
    """Return the page of the names that `doctor` and `plan` print."""
    text = f"# Names of doctor and plan\n\n{WRITTEN}[checks.md](../checks.md) describes both commands.\n\n"
    text += "## Findings of `aggregator doctor`\n\nEach [condition](conditions.md), and these faults:\n\n"
    text += table("checks", "names", rows=_findings())
    text += "A master that cannot be followed:\n\n"
    text += table("name", "what to do", rows=((f"`{name}`", advice) for name, advice in ADVICE.items()))
    text += "## Lines of `aggregator plan`\n\n"
    text += table("sign", "name", "", rows=_plan_lines())
    return text.rstrip("\n") + "\n"


def _plan_lines() -> Iterator[tuple[str, str, str]]:
    for name, (sign, means) in SIGN_AND_MEANING.items():
        yield f"`{sign}`" if sign.strip() else "", f"`{name}`", means


def _findings() -> Iterator[tuple[str, str]]:
    """Yield what each module of `doctor` checks, and the names that it passes to `warn` and `fail`."""
    for file in sorted(Path(doctor.__file__).parent.glob("*.py")):
        module = ast.parse(file.read_text())
        calls = [one for one in ast.walk(module) if isinstance(one, ast.Call) and one.args]
        texts = [one.args[0] for one in calls if ast.unparse(one.func) in ("warn", "fail")]
        assigned = [one for one in ast.walk(module) if isinstance(one, ast.Assign)]
        texts += [one.value for one in assigned if ast.unparse(one.targets[0]) == "name" and texts]
        constants = (inner for one in texts for inner in ast.walk(one) if isinstance(inner, ast.Constant))
        names = dict.fromkeys(f"`{one.value!s}`" for one in constants if one.value not in CONDITIONS)
        if names:
            what = (ast.get_docstring(module) or "").split("\n")[0].partition(". ")[0]
            yield what.removeprefix("Checks ").rstrip("."), " ".join(names)


# Options of the data source


def options_page() -> str:
    """Return the page of the options of `format("xlog")`."""
    names: dict[str, list[str]] = {"sources": ["path", "paths", "replicaset"]}
    for name, (field, _) in OPTION_PARSERS.items():
        names.setdefault(field, []).append(name)
    rows = (
        (
            ", ".join(f"`{name}`" for field in fields for name in names[field]),
            re.sub(r"^(`\w+`,? ?)+: ", "", text),
        )
        for fields, text in _strings_under_fields(options)
        if fields[0] in names
    )
    text = f"# Options of the data source\n\n{WRITTEN}"
    text += 'Of [`format("xlog")`](data-source.md); an unknown option is refused.\n\n'
    return text + table("option", "", rows=rows).rstrip("\n") + "\n"


def _strings_under_fields(module: ModuleType) -> Iterator[tuple[list[str], str]]:
    """Yield each string under fields of the module's dataclasses, with the fields that it describes."""
    for node in ast.walk(ast.parse(Path(module.__file__ or "").read_text())):
        fields: list[str] = []
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(part, ast.AnnAssign):
                fields.append(ast.unparse(part.target))
            elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and fields:
                yield fields, " ".join(str(part.value.value).split())
                fields = []


PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": lambda: commands_page("Commands", "Follow", "Look", "Use"),
    "commands-more.md": lambda: commands_page(
        "Commands that correct, copy and set up", "Correct and maintain", "Ids and copies", "Set up"
    ),
    "configuration.md": configuration_page,
    "configuration-live.md": live_page,
    "tables.md": tables_page,
    "metrics.md": metrics_page,
    "conditions.md": conditions_page,
    "data-source-options.md": options_page,
    "names.md": names_page,
    "functions.md": functions_page,
}
"""The pages, by file name."""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for _name, _page in PAGES.items():
        (FOLDER / _name).write_text(_page(), encoding="utf-8")
