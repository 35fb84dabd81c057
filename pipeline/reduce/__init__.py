"""Keyed rows and base versions → each replicaset's new version of each key.

`reduce` applies the rows to the base versions that `pipeline.lookup` found, with `operated_keys` for keys with UPDATEs
or UPSERTs.
"""
