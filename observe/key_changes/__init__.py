"""Reads all changes of one key from the tables, without Spark, for `aggregator who`; `reader` is the entry."""
