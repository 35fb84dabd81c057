"""The command `aggregator demo`."""

from jobs.commands.parameters import page_option
from jobs.runtime.command_line import command, config_option, load_deployment, spark_options


@command("demo", "spark-submit jobs/demo.py --config conf/demo.yaml", hidden=True)
@config_option
@page_option
@spark_options
def demo(config: str, page: str) -> int:
    """Aggregate what is there, validate the tables and show them, in one Spark session."""
    from jobs.demo import demo as work

    return work(load_deployment(config), config, page)
