"""The command `aggregator repair`."""

from jobs.runtime.command_line import command, config_option, load_deployment, print_result, spark_options


@command("repair", "aggregator repair --config deployment.yaml")
@config_option
@spark_options
def repair(config: str) -> int:
    """Close gaps in the logs: read the sources with gaps again, then other members.

    A gap is a range of lsns whose rows are missing; the table `_gaps` has the open ones. Exit code 1 if a gap stays
    open.
    """
    from jobs.repair import repair_warehouse

    code = repair_warehouse(load_deployment(config))
    if code:
        print_result(
            "some gaps are still open", "bring their logs back, or add a member, then the same command again"
        )
    return code
