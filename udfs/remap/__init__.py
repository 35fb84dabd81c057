"""Replica ids to global ids: `replica_ids` maps columns and vclocks, `cluster_replace` assigns global ids.

A replica id is an instance's number in its own replicaset; the global id is the aggregator's number of the instance.
The *applier map* of a source says which instance a replica id means, and from which lsn on.
"""
