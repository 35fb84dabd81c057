"""Show the aggregator at work on live servers (`make live-demo`).

    python -m live_demo [--kill-after SECONDS] [--every SECONDS] [--port PORT] [--folder FOLDER]

Thin: options and exit code. Not a subcommand of `aggregator`, since it brings servers and a writer along, which the
wheel does not need.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

from jobs.runtime.command_line import Stopped, call, command
from live_demo.demonstration import Options, demonstrate


@command("live-demo", "make live-demo ARGS='--kill-after 20'")
@click.option(
    *("--folder", "folder"),
    default=".state/live-demo",
    type=click.Path(path_type=Path),
    show_default=True,
    help="Where all files lie; what is in it goes.",
)
@click.option("--port", default=8074, show_default=True, help="Of the page; 0: any that is free.")
@click.option("--every", default=5, show_default=True, help="Seconds between two looks at the tables.")
@click.option(
    "--kill-after",
    type=int,
    metavar="SECONDS",
    help="Kill a master so long after the first rows, and start it again after as long.",
)
def live_demo(folder: Path, port: int, every: int, kill_after: int | None) -> int:
    """Two replicasets of real Tarantools, the daemon, the stream, SQL, and a page in the browser.

    Ends by Ctrl-C, with all processes that it started.
    """
    with suppress(KeyboardInterrupt, Stopped):
        demonstrate(Options(folder, port, every, kill_after))
    print("\nstopped: servers, daemon and stream have ended", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(call(live_demo, prog="live-demo"))
