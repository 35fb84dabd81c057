"""Print SQL that registers the tables by name and creates views, made by `observe.sql_views` without Spark."""

import sys
from collections.abc import Sequence

from config.deployment import Config
from jobs.main import main
from jobs.runtime.output import say_lines
from observe.sql_views import dbt_source, view_statements


def views(
    config: Config, epochs: Sequence[int] = (), labels: Sequence[str] = (), *, as_dbt: bool = False
) -> None:
    """Print the SQL of views of epochs and labelled instants; with `as_dbt`, print dbt's file of sources instead."""
    if as_dbt:
        say_lines(dbt_source(config).splitlines())
        return
    for statement in view_statements(config, list(epochs), labels):
        say_lines(f"{statement};".splitlines())


if __name__ == "__main__":
    sys.exit(main("views"))
