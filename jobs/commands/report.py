"""The command `aggregator report`."""

from jobs.commands.parameters import page_option
from jobs.runtime.command_line import command, config_option, load_deployment, spark_options


@command("report", "aggregator report --config deployment.yaml --page report.html")
@config_option
@page_option
@spark_options
def report(config: str, page: str) -> None:
    """Answer common questions, and write an HTML page.

    The page needs no network, and shows the tables as of the newest epoch.
    """
    from jobs.report import report as work

    work(load_deployment(config), page)
