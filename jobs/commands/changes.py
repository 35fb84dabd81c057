"""The command `aggregator changes`."""

import click

from jobs.runtime.command_line import command, config_option, load_deployment


@command(
    "changes",
    "aggregator changes accounts --config deployment.yaml",
    "aggregator changes accounts --config deployment.yaml --after 41 --follow",
)
@click.argument("space", metavar="SPACE")
@config_option
@click.option("--after", type=click.IntRange(min=0), metavar="EPOCH", help="Changes of later epochs only.")
@click.option(
    "--to",
    "--upto",
    "upto",
    type=click.IntRange(min=0),
    metavar="EPOCH",
    help="The last epoch; by default the newest.",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for further epochs, until the command is stopped.")
def changes(space: str, config: str, after: int | None, upto: int | None, follow: bool) -> int:
    """Print the change feed of a space: each change of a winning row, as JSON lines.

    Every line has the epoch, the operation (insert, update, delete), the row before and after, and who wrote it. What
    lost against another replicaset is not in it. A consumer that stores the last epoch continues with --after. Reads
    the tables only, without Spark.
    """
    from jobs.changes import show
    from warehouse.delta.location import location_of

    if follow and upto is not None:
        raise click.UsageError("--follow has no end: leave out --to")
    found = load_deployment(config)
    location = location_of(found.warehouse, found.database)
    return show(location, space, after, upto, config=config, follow=follow)
