"""The command `aggregator setup`."""

import click

from jobs.runtime.command_line import command
from jobs.runtime.parts import DEFAULT_PARTS, PARTS


@command("setup", "aggregator setup", "aggregator setup s3 classes")
@click.argument("parts", metavar="[PART]...", nargs=-1, type=click.Choice([*PARTS]))
def setup(parts: tuple[str, ...]) -> int:
    """Prepare this installation: Delta's jars and compiled kernels, once, before the first run.

    Without it, each start downloads the jars, and the first batch compiles for a minute. What is there already is left
    as it is, and needs no network. Run it as the owner of the package; others use what it made.

    PART: `delta` and `kernels` are the default. `batch-kernels`: without those of the daemons. `s3`: the jars for
    s3a://. `classes`: an archive of Java's classes, 200 MB, with which commands start seconds earlier.
    """
    from jobs.setup import set_up

    return set_up(parts or DEFAULT_PARTS)
