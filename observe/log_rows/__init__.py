"""Decodes, selects and formats the rows of log files without Spark, for `aggregator cat`."""
