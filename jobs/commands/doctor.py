"""The command `aggregator doctor`."""

from jobs.runtime.command_line import command, config_option, json_option


@command(
    "doctor", "aggregator doctor --config deployment.yaml", "aggregator doctor --config live.yaml --json"
)
@config_option
@json_option
def doctor(config: str, as_json: bool) -> int:
    """Find problems that would stop a run, and say what to do about each.

    Checks the machine, the sources, the masters, the store and the tables; changes nothing and starts no Spark. Reads a
    deployment's configuration, or that of the daemons alone. Exit code 1 if a check fails.
    """
    from jobs.doctor import show

    return show(config, is_json=as_json)
