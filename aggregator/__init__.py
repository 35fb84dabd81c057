"""The command `aggregator`, also `python -m aggregator`: runs the commands that `jobs.commands` defines."""
