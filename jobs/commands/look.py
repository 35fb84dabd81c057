"""Commands that read the tables or the logs, and change nothing but `_validations`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from jobs.cli import command, config_option, deployment, finished, json_option, spark_options

PAGE = "report.html"

page_option = click.option(
    "--page", default=PAGE, show_default=True, metavar="FILE", type=click.Path(), help="The HTML page."
)


@command("status", "aggregator status --config deployment.yaml", "aggregator status --config d.yaml --json")
@config_option
@json_option
def status(config: str, as_json: bool) -> int:
    """Show how far the tables are, and what is wrong.

    Gaps, requests, rows set aside. Reads the tables only, without Spark. Exit code 1 where something needs attention.
    """
    from jobs.overview import show

    return show(deployment(config), as_json=as_json)


@command("report", "aggregator report --config deployment.yaml --page report.html")
@config_option
@page_option
@spark_options
def report(config: str, page: str) -> None:
    """Answer common questions, and write an HTML page.

    The page needs no network, and shows the tables as of the newest epoch.
    """
    from jobs.report import report as work

    work(deployment(config), page)


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
    """Show versions of keys, from when to when, by SQL."""
    from jobs.history import show

    show(deployment(config), space, sql)


@command("views", "aggregator views --config deployment.yaml --epoch 41 > views.sql")
@config_option
@click.option(
    "--epoch",
    "epochs",
    type=int,
    multiple=True,
    metavar="N",
    help="Views of this epoch too; may be repeated.",
)
def views(config: str, epochs: Sequence[int]) -> None:
    """Print SQL of views: of epochs, and of who wrote rows."""
    from jobs.views import views as work

    work(deployment(config), epochs)


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

    By suites of Great Expectations, the aggregator's and your own. Exit code 1 where something does not hold.
    """
    from jobs.validate import validate as work

    code = work(deployment(config), config, spaces, docs, as_json=as_json)
    if code:
        finished("something does not hold", "docs/operation.md says what each finding means")
    return code


@command("demo", "spark-submit jobs/demo.py --config conf/demo.yaml", hidden=True)
@config_option
@page_option
@spark_options
def demo(config: str, page: str) -> int:
    """Aggregate what is there, validate the tables and show them, in one Spark session."""
    from jobs.demo import demo as work

    return work(deployment(config), config, page)
