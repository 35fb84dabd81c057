"""The command `aggregator unpack`."""

from collections.abc import Sequence

import click

from jobs.runtime.command_line import command, json_option, print_result


@command(
    "unpack",
    "aggregator unpack /backups/production --into /data/backups",
    "aggregator unpack s3://backups/production --into /data/backups --replicaset 11111111-1111-1111-1111-111111111111",
)
@click.argument("storage", metavar="STORAGE")
@click.option(
    "--into", required=True, metavar="FOLDER", type=click.Path(), help="Where directories of logs go."
)
@click.option(
    *("--replicaset", "replicasets"),
    multiple=True,
    metavar="UUID",
    help="Only this replicaset; may be repeated.",
)
@json_option
def unpack(storage: str, into: str, replicasets: Sequence[str], as_json: bool) -> int:
    """Unpack backups of `tt backup` into directories that `run` reads as sources.

    STORAGE is the folder or URI that `tt backup upload` was given, with its prefix. Run it after each backup: what was
    unpacked before is skipped. Exit code 1 if an archive is missing, or a backup between two others.
    """
    from pathlib import Path

    from jobs.unpack import unpack_all

    code = unpack_all(storage, Path(into), replicasets, as_json=as_json)
    if code:
        print_result("the backups have gaps", "docs/corrections.md, Backups, says what a missing link means")
    return code
