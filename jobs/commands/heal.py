"""The command `aggregator heal`."""

import click

from jobs.commands.backfill import run_backfill
from jobs.runtime.command_line import command, config_option, spark_options


@command("heal", "aggregator heal a1 --config deployment.yaml")
@click.argument("source", metavar="SOURCE")
@config_option
@spark_options
def heal(config: str, source: str) -> int:
    """Change the tables so that they equal the newest snapshot of a source.

    This ends a divergence: two members of a replicaset have different rows under the same lsn. You choose the correct
    member by the name of its source.
    """
    return run_backfill(config, heal=source)
