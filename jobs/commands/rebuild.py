"""The command `aggregator rebuild`."""

from __future__ import annotations

import click

from jobs.commands.backfill import run_backfill
from jobs.commands.parameters import dry_run_option
from jobs.runtime.command_line import command, config_option, spark_options

policy_option = click.option(
    "--policy", metavar="P", help="Another policy than the configured one, with --dry-run."
)


@command(
    "rebuild",
    "aggregator rebuild accounts --config deployment.yaml --policy '{policy: max, column: balance}' --dry-run",
    "aggregator rebuild accounts --config deployment.yaml",
)
@click.argument("space", metavar="SPACE")
@config_option
@policy_option
@dry_run_option
@spark_options
def rebuild(config: str, space: str, policy: str | None, dry_run: bool) -> int:
    """Apply a space's policy again to the keys that several replicasets have.

    Run it after a change of the policy in the configuration. --dry-run shows what another policy would choose.

    A table that is lost, or that somebody else has changed, is first taken back to the last epoch or made anew. Rows
    that it then lacks are read from snapshots.
    """
    return run_backfill(config, rebuild=space, policy=policy, dry_run=dry_run)
