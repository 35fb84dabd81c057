"""Writes the tables as snapshots and logs of one replicaset; the relay serves these to followers (Tarantool replicas)."""
