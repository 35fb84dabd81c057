"""The aggregator as a Tarantool node: the decided tables as the snapshots and logs of one replicaset, for the relay."""
