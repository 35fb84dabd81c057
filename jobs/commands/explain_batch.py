"""The command `aggregator explain-batch`."""

import click

from jobs.runtime.command_line import command, config_option, json_option, load_deployment


@command(
    "explain-batch",
    "aggregator explain-batch --config deployment.yaml",
    "aggregator explain-batch 41 --config deployment.yaml --json",
)
@click.argument("epoch", metavar="[EPOCH]", type=click.IntRange(min=0), required=False)
@config_option
@json_option
def explain_batch(epoch: int | None, config: str, as_json: bool) -> int:
    """Show what one batch read, held back, decided and wrote.

    EPOCH is the batch's number in `_epochs`, by default the newest one. Reads the tables only, without Spark.
    """
    from jobs.explain import show
    from warehouse.delta.location import location_of

    found = load_deployment(config)
    return show(location_of(found.warehouse, found.database), epoch, as_json=as_json)
