"""Keyed rows and the versions before them → each replicaset's new version of each key.

`versions` defines versions as columns; `reduce_plan` is what a task needs to know of the batch; `base` finds the
versions that must be read first; `reduce` applies the rows to them, with `fold` for keys that are updated.
"""
