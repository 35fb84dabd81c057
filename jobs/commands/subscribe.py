"""The command `aggregator subscribe`."""

import click

from jobs.commands.parameters import daemon_sections
from jobs.runtime.command_line import command, config_option, is_verbose


@command("subscribe", "aggregator subscribe --config live.yaml")
@config_option
@click.option(
    "--accept-rewind",
    is_flag=True,
    help="If a master was restored from an older state, so that its lsns went back: begin a new spool, keep the old.",
)
def subscribe(config: str, accept_rewind: bool) -> None:
    """Follow live masters as an anonymous replica, into spools.

    A spool is a directory of standard .snap and .xlog files, which `aggregator run` reads as a source. Reads the
    section `subscribe` of the configuration.
    """
    from jobs.subscribe import subscribe as work

    work(daemon_sections(config), config, accept_rewind=accept_rewind, verbose=is_verbose())
