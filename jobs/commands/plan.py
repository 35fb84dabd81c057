"""The command `aggregator plan`."""

from jobs.runtime.command_line import command, config_option, json_option, load_deployment


@command(
    "plan", "aggregator plan --config deployment.yaml", "aggregator plan --config deployment.yaml --json"
)
@config_option
@json_option
def plan(config: str, as_json: bool) -> int:
    """Show what the next run will do differently from the last one.

    Shows new sources and where they begin, spaces, tables that are created, changed or refused, policies and masks. It
    plans everything new in the logs as the run will, and writes nothing. Exit code 1 if something is refused or waits.
    """
    from jobs.plan import show

    return show(load_deployment(config), config, is_json=as_json)
