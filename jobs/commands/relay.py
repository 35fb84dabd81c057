"""The command `aggregator relay`."""

import click

from jobs.commands.parameters import daemon_sections
from jobs.runtime.command_line import command, config_option, is_verbose


@command("relay", "aggregator relay --config live.yaml", "aggregator relay --config live.yaml --aggregated")
@config_option
@click.option(
    "--aggregated",
    is_flag=True,
    help="Serve the decided tables of the warehouse, as one replicaset, instead of spools.",
)
def relay(config: str, aggregated: bool) -> None:
    """Serve spools over IPROTO.

    Other subscription daemons and anonymous replicas of Tarantool can read them. Reads the section `relay` of the
    configuration.
    """
    from jobs.relay import relay as work

    work(daemon_sections(config), config, aggregated=aggregated, verbose=is_verbose())
