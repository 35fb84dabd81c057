"""Commands that read the tables or the logs and write at most `_validations`; `demo` alone also aggregates."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgpack

from jobs.commands.fix import Moment
from jobs.runtime.command_line import (
    command,
    config_option,
    json_option,
    load_deployment,
    print_result,
    spark_options,
)

DEFAULT_PAGE = "report.html"

DEFAULT_RATE = 50_000
"""Tuples per second that `prove` reads from a server, by default."""

page_option = click.option(
    "--page",
    default=DEFAULT_PAGE,
    show_default=True,
    metavar="FILE",
    type=click.Path(),
    help="The HTML page.",
)


@command("status", "aggregator status --config deployment.yaml", "aggregator status --config d.yaml --json")
@config_option
@json_option
def status(config: str, as_json: bool) -> int:
    """Show up to which point the tables are complete, and which problems there are.

    Problems are gaps, rows that wait or were set aside, spools without a daemon, and standby copies that lack epochs.
    Reads the tables only, without Spark. Exit code 1 if something needs attention.
    """
    from jobs.status import show

    return show(load_deployment(config), as_json=as_json)


@command(
    "explain-batch",
    "aggregator explain-batch --config deployment.yaml",
    "aggregator explain-batch 41 --config deployment.yaml --json",
)
@click.argument("epoch", metavar="[EPOCH]", type=click.IntRange(min=0), required=False)
@config_option
@json_option
def explain_batch(epoch: int | None, config: str, as_json: bool) -> int:
    """Show what one batch read, held back, decided and wrote.

    EPOCH is the batch's number in `_epochs`, by default the newest one. Reads the tables only, without Spark.
    """
    from jobs.explain import show
    from warehouse.delta.location import location_of

    found = load_deployment(config)
    return show(location_of(found.warehouse, found.database), epoch, as_json=as_json)


@command(
    "doctor", "aggregator doctor --config deployment.yaml", "aggregator doctor --config live.yaml --json"
)
@config_option
@json_option
def doctor(config: str, as_json: bool) -> int:
    """Find problems that would stop a run, and say what to do about each.

    Checks the machine, the sources, the masters, the store and the tables; changes nothing and starts no Spark. Reads a
    deployment's configuration, or that of the daemons alone. Exit code 1 if a check fails.
    """
    from jobs.doctor import show

    return show(config, is_json=as_json)


@command(
    "plan", "aggregator plan --config deployment.yaml", "aggregator plan --config deployment.yaml --json"
)
@config_option
@json_option
def plan(config: str, as_json: bool) -> int:
    """Show what the next run will do differently from the last one.

    Shows new sources and where they begin, spaces, tables that are created, changed or refused, policies and masks. It
    plans everything new in the logs as the run will, and writes nothing. Exit code 1 if something is refused or
    waits.
    """
    from jobs.plan import show

    return show(load_deployment(config), config, is_json=as_json)


@command("report", "aggregator report --config deployment.yaml --page report.html")
@config_option
@page_option
@spark_options
def report(config: str, page: str) -> None:
    """Answer common questions, and write an HTML page.

    The page needs no network, and shows the tables as of the newest epoch.
    """
    from jobs.report import report as work

    work(load_deployment(config), page)


class LsnRange(click.ParamType[tuple[int | None, int | None]]):
    """Lsns as `A..B`, both inclusive; `A..`, `..B` or a single one."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the first and the last lsn, or fail with a usage error."""
        if isinstance(value, tuple):
            return value
        first, dots, last = str(value).partition("..")
        try:
            bounds = tuple(int(text) if text else None for text in (first, last if dots else first))
        except ValueError:
            bounds = (None, None)
        if bounds == (None, None):
            self.fail(f"{value!r} is not a range of lsns such as 100..200", param, ctx)
        return bounds


def key_values(_ctx: click.Context, _param: click.Parameter, text: str | None) -> list[Any] | None:
    """Return the values of a key: JSON, or plain text.

    As in printed output, {"base64": ...} represents bytes, and {"ext": 4, "base64": ...} an extension of this type.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    values = value if isinstance(value, list) else [value]
    return [_decoded_value(one) if isinstance(one, dict) and "base64" in one else one for one in values]


def _decoded_value(value: dict[str, Any]) -> Any:
    data = base64.b64decode(value["base64"])
    return data if "ext" not in value else msgpack.ExtType(value["ext"], data)


@command(
    "cat",
    "aggregator cat /var/lib/tarantool/a1 --space accounts --key 202 --tuples",
    "aggregator cat 00000000000000001474.xlog --type DELETE --lsn 1500..1600 --json",
    "aggregator cat /var/lib/tarantool/a1 -f --since 2026-11-20T10:00:00Z",
)
@click.argument("path", type=click.Path(exists=True, path_type=Path), metavar="FILE|DIR")
@click.option(
    "--space",
    "spaces",
    multiple=True,
    metavar="S",
    help="Only rows of this space, by name or id; may be repeated.",
)
@click.option(
    "--key", metavar="KEY", callback=key_values, help="Only rows of this primary key: a JSON value or array."
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only rows of this type, such as INSERT; may be repeated.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="ID",
    help="Only rows of this instance: replica id or uuid; may be repeated.",
)
@click.option(
    "--lsn", "lsns", type=LsnRange(), default=(None, None), metavar="A..B", help="Only rows with these lsns."
)
@click.option("--since", type=Moment(), metavar="T", help="Only rows written at that time or later.")
@click.option("--until", type=Moment(), metavar="T", help="Only rows written before that time.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more at the end, until Ctrl-C.")
@click.option(
    "--tuples",
    "with_tuples",
    is_flag=True,
    help="Show the tuple that an UPDATE or UPSERT made. Reads the snapshot before it, and keeps all tuples.",
)
@click.option("--uuids", "with_origins", is_flag=True, help="Name the instance of each row by its uuid.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line, with the columns of `xlog.pairs`."
)
def cat(path: Path, **options: Any) -> None:
    """Show the rows of a log file, or of a directory's logs.

    Names of spaces and fields come from the log itself and from the newest snapshot before it in its directory.
    `1/2050` is replica id 1, lsn 2050; `+` says that the transaction continues. Needs no Spark and no configuration.
    """
    from jobs.cat import cat as work
    from observe.log_rows.read import PrintedRowFilter

    first, last = options["lsns"]
    since, until = (
        None if (moment := options[name]) is None else round(moment.timestamp() * 1e6)
        for name in ("since", "until")
    )
    wanted = PrintedRowFilter(
        spaces=options["spaces"],
        key=options["key"],
        types=[one.upper() for one in options["types"]],
        origins=[one.lower() for one in options["origins"]],
        first_lsn=first,
        last_lsn=last,
        since_microseconds=since,
        until_microseconds=until,
    )
    given = {name: options[name] for name in ("as_json", "follow", "with_tuples", "with_origins")}
    work(path, wanted, **given)


@command(
    "changes",
    "aggregator changes accounts --config deployment.yaml",
    "aggregator changes accounts --config deployment.yaml --after 41 --follow",
)
@click.argument("space", metavar="SPACE")
@config_option
@click.option("--after", type=click.IntRange(min=0), metavar="EPOCH", help="Changes of later epochs only.")
@click.option(
    "--upto", type=click.IntRange(min=0), metavar="EPOCH", help="The last epoch; by default the newest."
)
@click.option("--follow", "-f", is_flag=True, help="Wait for further epochs, until the command is stopped.")
def changes(space: str, config: str, after: int | None, upto: int | None, follow: bool) -> int:
    """Print the change feed of a space: each change of a winning row, as JSON lines.

    Every line has the epoch, the operation (insert, update, delete), the row before and after, and who wrote it. What
    lost against another replicaset is not in it. A consumer that stores the last epoch continues with --after. Reads
    the tables only, without Spark.
    """
    from jobs.changes import show
    from warehouse.delta.location import location_of

    if follow and upto is not None:
        raise click.UsageError("--follow has no end: leave out --upto")
    found = load_deployment(config)
    location = location_of(found.warehouse, found.database)
    return show(location, space, after, upto, config=config, follow=follow)


@command(
    "who",
    "aggregator who accounts 202 --config deployment.yaml",
    "aggregator who orders '[7, \"a\"]' --config deployment.yaml --json",
)
@click.argument("space", metavar="SPACE")
@click.argument("key", metavar="KEY", callback=key_values)
@config_option
@json_option
def who(space: str, key: list[Any], config: str, as_json: bool) -> int:
    """Show who changed a key, which version won, and why.

    Prints every change of the key in every replicaset, with its origin, its time, the tuple after it and the other rows
    of its transaction, and each decision between replicasets. KEY is a JSON value, or an array of the key's parts.
    Reads the tables only, without Spark.
    """
    from jobs.who import who as work
    from warehouse.delta.location import location_of

    found = load_deployment(config)
    return work(location_of(found.warehouse, found.database), space, key, as_json=as_json)


@command(
    "history",
    "aggregator history --config deployment.yaml --space accounts",
    "aggregator history --config deployment.yaml --space accounts"
    " --sql 'SELECT row.balance, valid_from FROM accounts_history WHERE row.id = 7'",
)
@config_option
@click.option("--space", required=True, metavar="SPACE", help="The space's name.")
@click.option("--sql", metavar="QUERY", help="Of the view <table>_history; default: its first rows.")
@spark_options
def history(config: str, space: str, sql: str | None) -> None:
    """Show all versions of a space's keys with their periods of validity, by SQL."""
    from jobs.history import show

    show(load_deployment(config), space, sql)


@command(
    "views",
    "aggregator views --config deployment.yaml --epoch 41 > views.sql",
    "aggregator views --config deployment.yaml --at before-month-end > views.sql",
    "aggregator views --config deployment.yaml --dbt > models/sources.yml",
)
@config_option
@click.option(
    "--epoch",
    "epochs",
    type=int,
    multiple=True,
    metavar="N",
    help="Views of this epoch too; may be repeated.",
)
@click.option(
    "--at",
    "labels",
    multiple=True,
    metavar="LABEL",
    help="Views at this instant of all replicasets (section instants); may be repeated.",
)
@click.option("--dbt", "as_dbt", is_flag=True, help="Print a sources.yml of dbt instead of SQL.")
def views(config: str, epochs: Sequence[int], labels: Sequence[str], as_dbt: bool) -> None:
    """Print SQL of views: the tables as of an epoch or instant, and which instance wrote each row."""
    from jobs.views import views as work

    if as_dbt and (epochs or labels):
        raise click.UsageError("--dbt names the tables of the newest epoch; give it without --epoch and --at")
    work(load_deployment(config), epochs, labels, as_dbt=as_dbt)


@command(
    "validate",
    "aggregator validate --config deployment.yaml",
    "aggregator validate --config deployment.yaml --space accounts --docs docs/",
)
@config_option
@click.option("--space", "spaces", multiple=True, metavar="SPACE", help="Only this space; may be repeated.")
@click.option(
    "--docs", metavar="FOLDER", type=click.Path(), help="Write Data Docs there; default: validation.docs."
)
@json_option
@spark_options
def validate(config: str, spaces: Sequence[str], docs: str | None, as_json: bool) -> int:
    """Check the tables of the newest epoch.

    Runs suites of Great Expectations, the aggregator's and your own. Exit code 1 if an expectation fails.
    """
    from jobs.validate import validate as work

    code = work(load_deployment(config), config, spaces, docs, as_json=as_json)
    if code:
        print_result("something does not hold", "docs/checks.md says what each finding means")
    return code


@command(
    "prove",
    "aggregator prove --config deployment.yaml",
    "aggregator prove --config deployment.yaml accounts --rate 20000 --json",
)
@config_option
@click.argument("spaces", nargs=-1, metavar="[SPACE]...")
@click.option(
    *("--peer", "peers"),
    multiple=True,
    metavar="ADDRESS",
    help="Read this server, user@host:port; name one of each replicaset. Default: the peers of the section subscribe.",
)
@click.option("--password-env", metavar="NAME", help="Variable with the password of the users of --peer.")
@click.option(
    *("--rate", "rate"),
    type=click.FloatRange(min=1),
    default=DEFAULT_RATE,
    show_default=True,
    metavar="ROWS/S",
    help="Tuples that are read from a server in a second.",
)
@click.option(
    *("--patience", "patience"),
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long the tables may take to reach a server's vclock.",
)
@click.option(
    "--checksums",
    is_flag=True,
    help="Have a server sum up pages in Lua: less network, more of its processor; the user needs execute on universe.",
)
@json_option
def prove(
    config: str,
    spaces: Sequence[str],
    peers: Sequence[str],
    password_env: str | None,
    rate: float,
    patience: float,
    checksums: bool,
    as_json: bool,
) -> int:
    """Compare the tables with the live servers, key by key.

    Runs while a stream runs. Names each key that differs, with both tuples. Exit code 1 where something differs or
    could not be compared.
    """
    from jobs.prove import prove as work
    from jobs.prove import servers_to_read
    from observe.proof.space_proof import ProofLimits

    read = load_deployment(config)
    limits = ProofLimits(rate, patience, checksums)
    code = work(read, spaces, servers_to_read(read, peers, password_env), limits, as_json=as_json)
    if code:
        print_result("the tables are not proven", "docs/checks.md says what each result means")
    else:
        print_result("the tables have what the servers have")
    return code


@command("demo", "spark-submit jobs/demo.py --config conf/demo.yaml", hidden=True)
@config_option
@page_option
@spark_options
def demo(config: str, page: str) -> int:
    """Aggregate what is there, validate the tables and show them, in one Spark session."""
    from jobs.demo import demo as work

    return work(load_deployment(config), config, page)
