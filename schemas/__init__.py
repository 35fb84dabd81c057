"""Formats and types as plain data: rows of logs, Delta tables, spaces' definitions, names, errors.

No module here does I/O or needs a Spark session. Read `xrow` (a row of a log), `space` (a space's definition),
`field_types` and `layout` (its columns), `tables` (the tables of every warehouse), `states` (the words that they
store) and `names`; `policies` is the table of conflict policies, `iproto` has Tarantool's constants, `errors` all error
classes.
"""
