"""Reads sources over time as one stream: which source leads, what a batch reads of it, and how tasks share that.

`log_stream` is the entry point: its class `LogStream` computes the offsets. `failover` picks the leader, `read_ahead`
and `plan` decide how far a batch goes. `batch` plans the segments (`segment`) between two offsets, and `read` reads
one in a task. `identity` finds the replicaset of a source, `origins` the instances of replica ids, and `vinyl` finds
the rows of vinyl spaces from before a checkpoint.
"""
