"""Writes the tables as snapshots and logs of one replicaset, for the relay and its subscribers (Tarantool replicas).

The *stream* is the spool with these snapshots and logs. A space or a row is *served* if subscribers get it by the
stream. `service` runs `writer`, which compares what subscribers must have at the newest epoch (`target`) with what they
have (`state`), and writes the difference to the stream (`stream`). `definitions` merges the replicasets' definitions of
a space, `changes` finds the tuples that differ, `users` makes the users of subscribers, and `rows` encodes rows. An
*epoch mark* identifies an epoch even if the warehouse was rolled back: by its number, its commit time and table
versions.
"""
