"""The command `aggregator status`."""

from jobs.runtime.command_line import command, config_option, json_option, load_deployment


@command("status", "aggregator status --config deployment.yaml", "aggregator status --config d.yaml --json")
@config_option
@json_option
def status(config: str, as_json: bool) -> int:
    """Show up to which point the tables are complete, and which problems there are.

    Problems are gaps, rows that wait or were set aside, spools without a daemon, and standby copies that lack epochs.
    Reads the tables only, without Spark. Exit code 1 if something needs attention.
    """
    from jobs.status import show

    return show(load_deployment(config), as_json=as_json)
