"""The command `aggregator prove`."""

from collections.abc import Sequence

import click

from jobs.runtime.command_line import command, config_option, json_option, load_deployment, print_result

DEFAULT_RATE = 50_000
"""Tuples per second that `prove` reads from a server, by default."""


@command(
    "prove",
    "aggregator prove --config deployment.yaml",
    "aggregator prove --config deployment.yaml accounts --rate 20000 --json",
)
@config_option
@click.argument("spaces", nargs=-1, metavar="[SPACE]...")
@click.option(
    *("--peer", "peers"),
    multiple=True,
    metavar="ADDRESS",
    help="Read this server, user@host:port; name one of each replicaset. Default: the peers of the section subscribe.",
)
@click.option("--password-env", metavar="NAME", help="Variable with the password of the users of --peer.")
@click.option(
    *("--rate", "rate"),
    type=click.FloatRange(min=1),
    default=DEFAULT_RATE,
    show_default=True,
    metavar="ROWS/S",
    help="Tuples that are read from a server in a second.",
)
@click.option(
    *("--patience", "patience"),
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long the tables may take to reach a server's vclock.",
)
@click.option(
    "--checksums",
    is_flag=True,
    help="Have a server sum up pages in Lua: less network, more of its processor; the user needs execute on universe.",
)
@json_option
def prove(
    config: str,
    spaces: Sequence[str],
    peers: Sequence[str],
    password_env: str | None,
    rate: float,
    patience: float,
    checksums: bool,
    as_json: bool,
) -> int:
    """Compare the tables with the live servers, key by key.

    Runs while a stream runs. Names each key that differs, with both tuples. Exit code 1 where something differs or
    could not be compared.
    """
    from jobs.prove import prove as work
    from jobs.prove import servers_to_read
    from observe.proof.space_proof import ProofLimits

    read = load_deployment(config)
    limits = ProofLimits(rate, patience, checksums)
    code = work(read, spaces, servers_to_read(read, peers, password_env), limits, as_json=as_json)
    if code:
        print_result("the tables are not proven", "docs/checks.md says what each result means")
    else:
        print_result("the tables have what the servers have")
    return code
