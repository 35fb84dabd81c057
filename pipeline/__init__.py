"""Processes micro-batches, from the bytes of logs to the commit of an epoch."""
