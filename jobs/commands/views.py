"""The command `aggregator views`."""

from collections.abc import Sequence

import click

from jobs.runtime.command_line import command, config_option, load_deployment


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
