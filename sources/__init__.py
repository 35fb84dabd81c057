"""Reads rows of Tarantool's write-ahead log: from files (`xlog`), live servers (`iproto`), and backups (`backup`).

The daemon in `subscribe` copies the rows of live servers into a `spool`; `relay` serves a spool to other subscribers.
Start with `xlog`. The package depends on `schemas` only.

Terms: a *spool* is a directory of log files that the daemon writes for one replicaset. A *segment* is the part of one
file that a batch reads. The *settled* vclock is the one up to which all rows are applied, or dropped for good. A
*generation* is a snapshot that replaces all earlier rows of its replicaset, after a gap in the logs. A *marker* is a
row that is written with one label to every replicaset of a sharded cluster; its position in a log is a *point*, and the
points of one label in all replicasets are an *instant*.
"""
