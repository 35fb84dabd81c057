"""The command `aggregator forget`."""

from pathlib import Path
from typing import Any

import click

from jobs.commands.parameters import key_values
from jobs.runtime.command_line import command, config_option, load_deployment


def _keys(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> list[list[Any]]:
    return [key_values(ctx, param, text) or [] for text in texts]


@command(
    "forget",
    "aggregator forget accounts 202 --config deployment.yaml",
    "aggregator forget orders '[7, \"a\"]' '[8, \"a\"]' --config deployment.yaml --vacuum",
    "aggregator forget people ann@example.org --config deployment.yaml --search",
)
@click.argument("space", metavar="SPACE")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, callback=_keys)
@config_option
@click.option(
    "--vacuum",
    is_flag=True,
    help="Also remove all earlier versions of these tables, at once; earlier epochs become unreadable.",
)
@click.option(
    "--spool",
    "spools",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A further spool, such as that of a source that was removed from the configuration.",
)
@click.option("--search", "only_search", is_flag=True, help="Only search all files, and remove nothing.")
def forget(
    space: str,
    keys: list[list[Any]],
    config: str,
    vacuum: bool,
    spools: tuple[Path, ...],
    only_search: bool,
) -> int:
    """Remove all that is stored of keys, and search all files for what is left.

    Delete the keys on the servers first, and let the job read that: a later change or snapshot would bring them back.
    Stop the stream and the daemons of the spools. Then this removes every row of the keys from the space's table,
    _changelog, _versions, _conflicts, _quarantine, _pending, _validations and _requests in one epoch, the key copies,
    and the rows from spools. Data files of earlier versions stay until maintenance removes them, or --vacuum: then
    nobody else may write to the tables. If it is stopped, run it again.

    At the end all files below the warehouse, the checkpoint, the key copies and the spools are searched, decompressed.
    Files of the servers are named, and never changed. Exit code 1 if something is left that maintenance will not
    remove.
    """
    from jobs.forget import ForgetOptions
    from jobs.forget import forget as work

    options = ForgetOptions(space, keys, vacuum, spools, only_search)
    return work(load_deployment(config), options)
