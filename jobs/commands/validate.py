"""The command `aggregator validate`."""

from collections.abc import Sequence

import click

from jobs.runtime.command_line import (
    command,
    config_option,
    json_option,
    load_deployment,
    print_result,
    spark_options,
)


@command(
    "validate",
    "aggregator validate --config deployment.yaml",
    "aggregator validate --config deployment.yaml --space accounts --docs docs/",
)
@config_option
@click.option("--space", "spaces", multiple=True, metavar="SPACE", help="Only this space; may be repeated.")
@click.option(
    "--docs", metavar="FOLDER", type=click.Path(), help="Write Data Docs there; default: validation.docs."
)
@json_option
@spark_options
def validate(config: str, spaces: Sequence[str], docs: str | None, as_json: bool) -> int:
    """Check the tables of the newest epoch.

    Runs suites of Great Expectations, the aggregator's and your own. Exit code 1 if an expectation fails.
    """
    from jobs.validate import validate as work

    code = work(load_deployment(config), config, spaces, docs, as_json=as_json)
    if code:
        print_result("something does not hold", "docs/checks.md says what each finding means")
    return code
