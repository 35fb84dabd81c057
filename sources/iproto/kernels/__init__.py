"""The hot path of replication, compiled by numba: `rows` converts received rows to a log, `frames` a log to packets."""
