"""Keyed rows and the versions before them → each replicaset's new version of each key.

`versions` says what a version is, in columns; `reduce_plan` is what a task needs to know of the batch; `base` says
which versions must be read before; `reduce` passes the rows over them, `fold` those of keys that are updated.
"""
