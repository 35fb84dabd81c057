"""The commands `aggregator rid …`, about whole warehouses."""

from collections.abc import Callable
from typing import Any

import click

from jobs.runtime.command_line import CONTEXT_SETTINGS, ExampleGroup, command, json_option

DEFAULT_DATABASE = "aggregator"


@click.group("rid", cls=ExampleGroup, context_settings=CONTEXT_SETTINGS)
def rid() -> None:
    """Compare whole warehouses by RID, copy one to another, and change which copy may be written.

    WAREHOUSE is the configuration's `warehouse`, or the folder of its database. Needs no Spark.
    """


rid.examples = ["aggregator rid show /data/warehouse"]


database_option = click.option(
    "--database",
    default=DEFAULT_DATABASE,
    show_default=True,
    help="The database of a warehouse named by its folder.",
)


def warehouse_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the argument and the options that name one warehouse: its address, or `--config`."""
    function = database_option(json_option(function))
    file = click.option("--config", metavar="FILE", type=click.Path(), help="Instead of WAREHOUSE.")
    return click.argument("warehouse", required=False)(file(function))


@rid.add_command
@command("show", "aggregator rid show /data/warehouse", "aggregator rid show --config d.yaml --json")
@warehouse_options
def show_rid(warehouse: str | None, config: str | None, database: str, as_json: bool) -> None:
    """Show the RID of a warehouse, its meaning, and its generations."""
    from jobs.rid import location_from
    from jobs.rid import show as work

    work(location_from(warehouse, config, database), as_json=as_json)


@rid.add_command
@command("promote", "aggregator rid promote s3://standby/warehouse")
@warehouse_options
@click.option(
    "--abandon-sync",
    is_flag=True,
    help="Abandon an unfinished sync into the warehouse; the data copied so far become a generation of its own.",
)
def promote_warehouse(
    warehouse: str | None, config: str | None, database: str, as_json: bool, abandon_sync: bool
) -> None:
    """Make a warehouse the primary: jobs may write it."""
    from jobs.rid import location_from
    from jobs.rid import promote as work

    work(location_from(warehouse, config, database), abandon_sync=abandon_sync, as_json=as_json)


@rid.add_command
@command("demote", "aggregator rid demote /data/warehouse")
@warehouse_options
def demote_warehouse(warehouse: str | None, config: str | None, database: str, as_json: bool) -> None:
    """Make a warehouse a secondary: no job writes it."""
    from jobs.rid import demote as work
    from jobs.rid import location_from

    work(location_from(warehouse, config, database), as_json=as_json)


@rid.add_command
@command("disconnect", "aggregator rid disconnect /data/warehouse")
@warehouse_options
def disconnect_warehouse(warehouse: str | None, config: str | None, database: str, as_json: bool) -> None:
    """Record that a copy exists, or will exist, that no job keeps up to date.

    From then on the next epoch of a primary begins a new generation, which the copy does not have. A secondary is
    marked as outdated. Run it before a copy is made by other means than sync, as by cp or by a snapshot of the
    storage. A running stream need not be stopped.
    """
    from jobs.rid import location_from
    from jobs.rid import record_disconnected as work

    work(location_from(warehouse, config, database), as_json=as_json)


@rid.add_command
@command("connect", "aggregator rid connect /data/warehouse s3://standby/warehouse")
@click.argument("warehouses", nargs=-1, required=True, metavar="WAREHOUSE WAREHOUSE…")
@database_option
@json_option
def connect_warehouses(warehouses: tuple[str, ...], database: str, as_json: bool) -> None:
    """Record that these warehouses have equal content, and that no other copies exist.

    All are compared; if two differ, nothing is changed. The primary's next data stay in its generation if its job keeps
    all of them connected (`standby.peers`), and begin a new one otherwise.
    """
    from jobs.rid import location_from
    from jobs.rid import record_connected as work

    if len(warehouses) < 2:
        raise click.UsageError("name two warehouses or more")
    work([location_from(one, None, database) for one in warehouses], as_json=as_json)


@rid.add_command
@command("compare", "aggregator rid compare /data/warehouse s3://standby/warehouse")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@database_option
@json_option
def compare_warehouses(first: str, second: str, database: str, as_json: bool) -> int:
    """Compare two warehouses, or RIDs given as text.

    Exit codes: 0 same; 3 one is an older copy, which sync brings up to date; 4 split brain; 5 unrelated; 2 not a RID.
    """
    from jobs.rid import compare_rids

    return compare_rids(first, second, database, as_json=as_json)


@rid.add_command
@command("sync", "aggregator rid sync --from /data/warehouse --to s3://standby/warehouse")
@click.option("--from", "source", required=True, metavar="WAREHOUSE", help="The warehouse that is copied.")
@click.option("--to", "target", required=True, metavar="WAREHOUSE", help="The copy: a new or an older one.")
@click.option(
    "--discard-target",
    metavar="RID",
    help="Discard what only the target has; RID is the target's, by `rid show`.",
)
@click.option(
    "--verify",
    type=click.Choice(["all", "copied"]),
    default="all",
    show_default=True,
    help="Compare the content of all files, or only of the copied ones; of other files the size is compared.",
)
@database_option
def sync_warehouse(source: str, target: str, discard_target: str | None, verify: str, database: str) -> None:
    """Copy a warehouse onto another location, or bring the copy there up to date."""
    from jobs.rid import copy

    copy(source, target, database, discard_target=discard_target, check_all=verify == "all")
