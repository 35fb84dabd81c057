"""Show the aggregator at work on live servers (`make live-demo`).

    python -m live_demo [--kill-after SECONDS] [--every SECONDS] [--port PORT] [--folder FOLDER]

This module has only the options and the exit code. The demonstration is not a subcommand of `aggregator`, because the
wheel does not need its servers.
"""

import sys
from contextlib import suppress
from pathlib import Path

import click

from jobs.runtime.command_line import Stopped, command, run_command
from live_demo.demonstration import Options, demonstrate


@command("live-demo", "make live-demo ARGS='--kill-after 20'")
@click.option(
    *("--folder", "folder"),
    default=".state/live-demo",
    type=click.Path(path_type=Path),
    show_default=True,
    help="The folder for all files; its present content is deleted.",
)
@click.option("--port", default=8074, show_default=True, help="Port of the page; 0: any free one.")
@click.option("--every", default=5, show_default=True, help="Seconds between two reads of the tables.")
@click.option(
    "--kill-after",
    type=int,
    metavar="SECONDS",
    help="Kill a master this long after the first rows, and start it again after the same time.",
)
def live_demo(folder: Path, port: int, every: int, kill_after: int | None) -> int:
    """Run two replicasets of real Tarantools, the daemon and the stream, and show SQL and a page in the browser.

    Ctrl-C ends it and all processes that it started.
    """
    with suppress(KeyboardInterrupt, Stopped):
        demonstrate(Options(folder, port, every, kill_after))
    print("\nstopped: servers, daemon and stream have ended", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(live_demo, prog="live-demo"))
