"""Keyed rows and base versions → each replicaset's new version of each key.

`versions` defines versions as columns; `reduce_plan` is what a task needs to know of the batch; `base` finds the
base versions that must be read; `reduce` applies the rows to them, with `fold` for keys with UPDATEs or UPSERTs.
"""
