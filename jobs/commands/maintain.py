"""The command `aggregator maintain`."""

import click

from jobs.commands.parameters import dry_run_option
from jobs.runtime.command_line import command, config_option, load_deployment, spark_options

KEEP_DAYS = 7


@command(
    "maintain",
    "aggregator maintain --config deployment.yaml --dry-run",
    "aggregator maintain --config deployment.yaml --keep-days 30",
    "aggregator maintain --config deployment.yaml --purge",
)
@config_option
@click.option(
    "--keep-days",
    type=int,
    default=KEEP_DAYS,
    show_default=True,
    metavar="DAYS",
    help="Versions of tables that are older may become unreadable.",
)
@click.option(
    "--purge",
    is_flag=True,
    help="Write all files with deletion vectors again, for readers that do not know them.",
)
@dry_run_option
@spark_options
def maintain(config: str, keep_days: int, purge: bool, dry_run: bool) -> int:
    """Join small files, and remove files that no epoch of the last --keep-days needs.

    Rows of the system tables are removed after the times in the section `retention`; by default no rows are removed.
    """
    from jobs.maintain import maintain as work

    return work(load_deployment(config), keep_days, purge=purge, dry_run=dry_run)
