"""The command `aggregator sql`."""

import click

from jobs.runtime.command_line import command, config_option, json_option, load_deployment, spark_options


@command(
    "sql",
    "aggregator sql --config deployment.yaml",
    "aggregator sql --config deployment.yaml 'SELECT sum(balance) FROM accounts'",
    "aggregator sql --config deployment.yaml --json < questions.sql",
)
@click.argument("statement", metavar="[STATEMENT]", required=False)
@config_option
@json_option
@spark_options
def sql(statement: str | None, config: str, as_json: bool) -> int:
    """Ask the tables by SQL: one statement, or those that are typed.

    All tables and views have their names, without the database, too, and `tuple_json(_tuple)` shows an exact tuple.
    Typed statements end with a semicolon. --json prints all rows, one JSON object a line.
    """
    from jobs.sql import sql as work

    return work(load_deployment(config), statement, as_json=as_json)
