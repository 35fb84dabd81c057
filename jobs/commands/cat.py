"""The command `aggregator cat`."""

from pathlib import Path
from typing import Any

import click

from jobs.commands.parameters import Moment, key_values
from jobs.runtime.command_line import command


class LsnRange(click.ParamType[tuple[int | None, int | None]]):
    """Lsns as `A..B`, both inclusive; `A..`, `..B` or a single one."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the first and the last lsn, or fail with a usage error."""
        if isinstance(value, tuple):
            return value
        first, dots, last = str(value).partition("..")
        try:
            bounds = tuple(int(text) if text else None for text in (first, last if dots else first))
        except ValueError:
            bounds = (None, None)
        if bounds == (None, None):
            self.fail(f"{value!r} is not a range of lsns such as 100..200", param, ctx)
        return bounds


@command(
    "cat",
    "aggregator cat /var/lib/tarantool/a1 --space accounts --key 202 --tuples",
    "aggregator cat 00000000000000001474.xlog --type DELETE --lsn 1500..1600 --json",
    "aggregator cat /var/lib/tarantool/a1 -f --since 2026-11-20T10:00:00Z",
)
@click.argument("path", type=click.Path(exists=True, path_type=Path), metavar="FILE|DIR")
@click.option(
    "--space",
    "spaces",
    multiple=True,
    metavar="S",
    help="Only rows of this space, by name or id; may be repeated.",
)
@click.option(
    "--key", metavar="KEY", callback=key_values, help="Only rows of this primary key: a JSON value or array."
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only rows of this type, such as INSERT; may be repeated.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="ID",
    help="Only rows of this instance: replica id or uuid; may be repeated.",
)
@click.option(
    "--lsn", "lsns", type=LsnRange(), default=(None, None), metavar="A..B", help="Only rows with these lsns."
)
@click.option("--since", type=Moment(), metavar="T", help="Only rows written at that time or later.")
@click.option("--until", type=Moment(), metavar="T", help="Only rows written before that time.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more at the end, until Ctrl-C.")
@click.option(
    "--tuples",
    "with_tuples",
    is_flag=True,
    help="Show the tuple that an UPDATE or UPSERT made. Reads the snapshot before it, and keeps all tuples.",
)
@click.option("--uuids", "with_origins", is_flag=True, help="Name the instance of each row by its uuid.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line, with the columns of `xlog.pairs`."
)
def cat(path: Path, **options: Any) -> None:
    """Show the rows of a log file, or of a directory's logs.

    Names of spaces and fields come from the log itself and from the newest snapshot before it in its directory.
    `1/2050` is replica id 1, lsn 2050; `+` says that the transaction continues. Needs no Spark and no configuration.
    """
    from jobs.cat import cat as work
    from observe.log_rows.read import PrintedRowFilter

    first, last = options["lsns"]
    since, until = (
        None if (moment := options[name]) is None else round(moment.timestamp() * 1e6)
        for name in ("since", "until")
    )
    wanted = PrintedRowFilter(
        spaces=options["spaces"],
        key=options["key"],
        types=[one.upper() for one in options["types"]],
        origins=[one.lower() for one in options["origins"]],
        first_lsn=first,
        last_lsn=last,
        since_microseconds=since,
        until_microseconds=until,
    )
    given = {name: options[name] for name in ("as_json", "follow", "with_tuples", "with_origins")}
    work(path, wanted, **given)
