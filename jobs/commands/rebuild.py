"""The command `aggregator rebuild`."""

import click

from jobs.commands.backfill import run_backfill
from jobs.commands.parameters import dry_run_option
from jobs.runtime.command_line import command, config_option, load_deployment, spark_options

policy_option = click.option(
    "--policy", metavar="P", help="Another policy than the configured one, with --dry-run."
)


@command(
    "rebuild",
    "aggregator rebuild accounts --config deployment.yaml --policy '{policy: max, column: balance}' --dry-run",
    "aggregator rebuild accounts --config deployment.yaml",
    "aggregator rebuild accounts --config deployment.yaml --beside",
)
@click.argument("space", metavar="SPACE")
@config_option
@policy_option
@dry_run_option
@click.option("--beside", "action", flag_value="beside", help="Build a second table, or bring it up to date.")
@click.option("--compare", "action", flag_value="compare", help="Show in which keys the two tables differ.")
@click.option("--swap", "action", flag_value="swap", help="Put the second table in the place of the first.")
@click.option("--discard", "action", flag_value="discard", help="Remove the second table.")
@spark_options
def rebuild(config: str, space: str, policy: str | None, dry_run: bool, action: str | None) -> int:
    """Apply a space's policy again to the keys that several replicasets have.

    Run it after a change of the policy in the configuration. --dry-run shows what another policy would choose.

    A table that is lost, or that somebody else has changed, is first taken back to the last epoch or made anew. Rows
    that it then lacks are read from snapshots.

    For another policy, other types, a filter or masks on a large table: change the YAML, and while the stream runs,
    --beside builds the table as the YAML says in the database `<database>__beside`, --compare shows the keys that
    differ, and --swap puts it in place in one epoch: readers see the old table or the new one, and the stream continues
    with the new settings. The YAML may differ from the stream's in the settings of this table alone.
    """
    if action is None:
        return run_backfill(config, rebuild=space, policy=policy, dry_run=dry_run)
    if policy is not None or dry_run:
        raise click.UsageError(
            "--policy and --dry-run are not for a table beside: it is built as the file says"
        )
    from jobs.beside import rebuild_beside

    return rebuild_beside(load_deployment(config), space, action)
