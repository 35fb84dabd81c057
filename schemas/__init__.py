"""Formats and types as plain data: rows of logs, Delta tables, spaces' definitions, names, errors.

No module here does I/O or needs a Spark session. Terms that these modules use:

- *xrow*: a row of Tarantool's log. It is *settled* when it is decided whether it counts (`tables.CHANGELOG`).
- *epoch*: a committed batch, a row of `_epochs`. An *instant* is an epoch at one label of all replicasets
  (`tables.EPOCHS`).
- *segment*: a part of one log file that a batch reads (`xrow`).
- *applier map*: which instance a replica id of a source means, and from which lsn on (`tables.APPLIER_MAP`).
- *spool*: a directory of logs that a daemon writes with the rows of a live server.
- *masked table*: a space's table without, or with hashes of, fields that readers must not see; its *exact table* has
  the whole tuples (`names`).
- *misfit*: a value that its column cannot hold (`tables.QUARANTINE`). *Unfit*: a version whose tuple is unknown
  (`tables.VERSIONS`).

Read `xrow` (a row of a log), `space` (a space's definition), `field_types` and `layout` (its columns), `tables` (the
tables of every warehouse), `states` (the words that they store) and `names`; `policies` is the table of conflict
policies, `iproto` has Tarantool's constants, `errors` all error classes.
"""
