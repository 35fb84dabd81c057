"""The hot path of replication, compiled by numba.

`rows` converts received rows to a log, `filter` replaces unwanted ones, and `frames` converts a log to packets.
"""
