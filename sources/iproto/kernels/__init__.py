"""The hot path of replication, compiled by numba.

`rows` converts received rows to rows of a log, `filter` replaces rows of unwanted instances by NOPs, and `frames`
converts rows of a log to packets. `wire` has the functions and constants that they share.
"""
