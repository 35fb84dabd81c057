"""Keyed rows and base versions → each replicaset's new version of each key.

`reduce` applies the rows to the base versions that `pipeline.lookup` found, with `fold` for keys with UPDATEs or
UPSERTs.
"""
