"""The hot path of replication, compiled by numba: rows from the wire to the log, and from the log to the wire."""
