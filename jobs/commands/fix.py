"""Commands that correct or maintain tables; a running writer does the work, otherwise this process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from jobs.runtime.command_line import command, config_option, load_deployment, print_result, spark_options

KEEP_DAYS = 7
"""The default of `--keep-days`."""


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601; UTC if it has no offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time, or fail with a usage error."""
        try:
            found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-11-21T10:00:00Z", param, ctx)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def run_backfill(config: str, **options: Any) -> int:
    """Run `jobs.backfill.backfill` with these options, the fields of `BackfillOptions`, and return the exit code."""
    from jobs.backfill import BackfillOptions, backfill

    code = backfill(load_deployment(config), BackfillOptions(**options))
    if code == 0 and not options.get("dry_run"):
        print_result("the tables are written", f"aggregator validate --config {config}")
    return code


source_option = click.option("--source", metavar="S", help="A source by its name; default: each of them.")
policy_option = click.option(
    "--policy", metavar="P", help="Another policy than the configured one, with --dry-run."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")


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


@command("snapshot", "aggregator snapshot accounts orders --config deployment.yaml")
@click.argument("spaces", metavar="SPACE...", nargs=-1, required=True)
@config_option
@source_option
@spark_options
def snapshot(config: str, spaces: Sequence[str], source: str | None) -> int:
    """Read spaces again from the newest snapshot."""
    return run_backfill(config, snapshot=spaces, source=source)


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
    """
    return run_backfill(config, rebuild=space, policy=policy, dry_run=dry_run)


@command("repair", "aggregator repair --config deployment.yaml")
@config_option
@spark_options
def repair_gaps(config: str) -> int:
    """Close gaps in the logs: read the sources with gaps again, then other members.

    A gap is a range of lsns whose rows are missing; the table `_gaps` has the open ones. Exit code 1 if a gap stays
    open.
    """
    from jobs.repair import repair_warehouse

    code = repair_warehouse(load_deployment(config))
    if code:
        print_result(
            "some gaps are still open", "bring their logs back, or add a member, then the same command again"
        )
    return code


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
