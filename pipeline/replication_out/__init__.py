"""Writes the tables as snapshots and logs of one replicaset, for the relay and its subscribers (Tarantool replicas).

`service` runs `writer`, which compares what subscribers must have at the newest epoch (`target`) with what they have
(`state`), and writes the difference to the spool (`stream`). `definitions` merges the replicasets' definitions of a
space, `changes` finds the tuples that differ, `users` makes the users of subscribers, `rows` encodes rows, and
`bootstrap_rows` has the system spaces of an empty replicaset. An *epoch mark* identifies an epoch even if the warehouse
was rolled back: by its number, commit time and table versions.
"""
