"""The command `aggregator snapshot`."""

from collections.abc import Sequence

import click

from jobs.commands.backfill import run_backfill
from jobs.commands.parameters import source_option
from jobs.runtime.command_line import command, config_option, spark_options


@command("snapshot", "aggregator snapshot accounts orders --config deployment.yaml")
@click.argument("spaces", metavar="SPACE...", nargs=-1, required=True)
@config_option
@source_option
@spark_options
def snapshot(config: str, spaces: Sequence[str], source: str | None) -> int:
    """Read spaces again from the newest snapshot."""
    return run_backfill(config, snapshot=spaces, source=source)
