"""Formats and types as plain data: rows of logs, Delta tables, spaces' definitions, names, errors. No I/O, no session.

Read `xrow` (a row of a log), `space` (a space's definition), `types` and `layout` (its columns), `tables` (the tables
of every warehouse) and `names`; `iproto` has Tarantool's constants, `errors` all error classes.
"""
