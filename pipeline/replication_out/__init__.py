"""Writes the tables as snapshots and logs of one replicaset, for the relay and its subscribers (Tarantool replicas)."""
