"""The command `aggregator`, also `python -m aggregator`: one way to all commands, which `jobs.commands` defines."""
