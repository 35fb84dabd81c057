"""The command `aggregator size`."""

from jobs.runtime.command_line import command, config_option, json_option, load_deployment


@command(
    "size", "aggregator size --config deployment.yaml", "aggregator size --config deployment.yaml --json"
)
@config_option
@json_option
def size(config: str, as_json: bool) -> int:
    """Estimate what a deployment needs, from its own logs: cores, memory, disk.

    Reads the headers of the logs, and the tables if there are some; needs no Spark. docs/scaling.md has the figures
    from which it computes.
    """
    from jobs.size import size as work

    return work(load_deployment(config), as_json=as_json)
