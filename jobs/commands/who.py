"""The command `aggregator who`."""

from typing import Any

import click

from jobs.commands.parameters import key_values
from jobs.runtime.command_line import command, config_option, json_option, load_deployment


@command(
    "who",
    "aggregator who accounts 202 --config deployment.yaml",
    "aggregator who orders '[7, \"a\"]' --config deployment.yaml --json",
)
@click.argument("space", metavar="SPACE")
@click.argument("key", metavar="KEY", callback=key_values)
@config_option
@json_option
def who(space: str, key: list[Any], config: str, as_json: bool) -> int:
    """Show who changed a key, which version won, and why.

    Prints every change of the key in every replicaset, with its origin, its time, the tuple after it and the other rows
    of its transaction, and each decision between replicasets. KEY is a JSON value, or an array of the key's parts.
    Reads the tables only, without Spark.
    """
    from jobs.who import who as work
    from warehouse.delta.location import location_of

    found = load_deployment(config)
    return work(location_of(found.warehouse, found.database), space, key, as_json=as_json)
