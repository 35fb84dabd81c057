"""Reads rows of Tarantool's write-ahead log: from files (`xlog`), live servers (`iproto`), and backups (`backup`).

The daemon in `subscribe` copies the rows of live servers into a `spool`; `relay` serves a spool to other subscribers.
Start with `xlog`. The package depends on `schemas` only.
"""
