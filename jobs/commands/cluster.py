"""The commands `aggregator cluster …`, about the ids of instances in their replicasets."""

import click

from jobs.runtime.command_line import (
    CONTEXT_SETTINGS,
    ExampleGroup,
    command,
    config_option,
    json_option,
    load_deployment,
)


@click.group("cluster", cls=ExampleGroup, context_settings=CONTEXT_SETTINGS)
def cluster() -> None:
    """Show the owners of replica ids, and vclocks.

    Reads the tables only, without Spark, also while a stream runs.
    """


cluster.examples = ["aggregator cluster show --config deployment.yaml"]


@cluster.add_command
@command("show", "aggregator cluster show --config deployment.yaml")
@config_option
@json_option
def show_cluster(config: str, as_json: bool) -> None:
    """Show each instance, and the owners of each replica id over time."""
    from jobs.cluster import show

    show(load_deployment(config), as_json=as_json)


@cluster.add_command
@command("vclock", "aggregator cluster vclock a1 --config deployment.yaml")
@click.argument("source", metavar="SOURCE")
@config_option
@json_option
def show_vclock(config: str, source: str, as_json: bool) -> None:
    """Show the vclock after which a source is read next, in the source's own replica ids."""
    from jobs.cluster import show_vclock as work

    work(load_deployment(config), source, as_json=as_json)


@cluster.add_command
@command("checksum", "aggregator cluster checksum a1 --config deployment.yaml")
@click.argument("replicaset", metavar="REPLICASET")
@config_option
@json_option
def show_checksum_of_instance_ids(config: str, replicaset: str, as_json: bool) -> None:
    """Show the crc32 of a replicaset's replica ids and instance uuids, to compare it with another member's.

    REPLICASET is a uuid, for the replica ids that the aggregator has, or a source's name, for those in its logs.
    """
    from jobs.cluster import show_checksum_of_instance_ids as work

    work(load_deployment(config), replicaset, as_json=as_json)
