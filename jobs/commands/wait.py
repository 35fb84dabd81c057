"""The command `aggregator wait`."""

from uuid import UUID

import click

from jobs.runtime.command_line import command, config_option, json_option, load_deployment


class Instance(click.ParamType[str]):
    """An instance's uuid."""

    name = "uuid"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the uuid in its usual form, or fail with a usage error."""
        try:
            return str(UUID(value))
        except ValueError:
            self.fail(f"{value!r} is not a uuid", param, ctx)


@command(
    "wait",
    "aggregator wait --config deployment.yaml --instance 64d22e4d-ac92-4a23-899a-e59f34af5479 --lsn 1500",
    "aggregator wait --config deployment.yaml --global-id 2 --lsn 1500 --timeout 60 --json",
)
@config_option
@click.option(
    "--instance", type=Instance(), metavar="UUID", help="The server that wrote the row: box.info.uuid."
)
@click.option("--global-id", type=click.IntRange(min=1), metavar="ID", help="The same by its global id.")
@click.option(
    "--lsn", type=click.IntRange(min=1), required=True, help="The row's lsn: box.info.lsn after the commit."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
@json_option
def wait(
    config: str, instance: str | None, global_id: int | None, lsn: int, timeout: float, as_json: bool
) -> int:
    """Wait until a row that a client wrote is in the tables.

    Then it is in the tables of the printed epoch and of all later ones, with all rows before it. Reads the tables only,
    without Spark. Exit code 1 if it is not there when the time is over.
    """
    from jobs.wait import wait as work

    wanted = instance if instance is not None else global_id
    if wanted is None or (instance is not None and global_id is not None):
        raise click.UsageError("one of --instance and --global-id is needed")
    return work(load_deployment(config), wanted, lsn, timeout, as_json=as_json)
