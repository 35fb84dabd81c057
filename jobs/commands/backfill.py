"""The command `aggregator backfill`, and what `snapshot`, `heal` and `rebuild` share with it."""

from typing import Any

import click

from jobs.commands.parameters import Moment, source_option
from jobs.runtime.command_line import command, config_option, load_deployment, print_result, spark_options


def run_backfill(config: str, **options: Any) -> int:
    """Run `jobs.backfill.backfill` with these options, the fields of `BackfillOptions`, and return the exit code."""
    from jobs.backfill import BackfillOptions, backfill

    code = backfill(load_deployment(config), BackfillOptions(**options))
    if code == 0 and not options.get("dry_run"):
        print_result("the tables are written", f"aggregator validate --config {config}")
    return code


@command(
    "backfill",
    "aggregator backfill --config deployment.yaml",
    "aggregator backfill --config deployment.yaml --source a1 --from 2026-11-20 --to 2026-11-21",
)
@config_option
@source_option
@click.option("--from", "since", type=Moment(), metavar="T", help="Leave out files that end before.")
@click.option("--to", "until", type=Moment(), metavar="T", help="Leave out files that begin then.")
@click.option("--snapshot", multiple=True, metavar="SPACE", hidden=True, help="As `snapshot SPACE`.")
@click.option("--heal", metavar="S", hidden=True, help="As `heal S`.")
@click.option("--rebuild", metavar="SPACE", hidden=True, help="As `rebuild SPACE`.")
@click.option("--policy", metavar="P", hidden=True, help="Of --rebuild.")
@click.option("--dry-run", is_flag=True, hidden=True, help="Of --rebuild.")
@spark_options
def backfill(config: str, **options: Any) -> int:
    """Read logs again: all of them, or those of a time range.

    Rows that are in the tables already are skipped. The stream may run: it then does the work between two batches.
    """
    return run_backfill(config, **options)
