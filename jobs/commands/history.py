"""The command `aggregator history`."""

import click

from jobs.runtime.command_line import command, config_option, load_deployment, spark_options


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
