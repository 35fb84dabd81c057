"""What users see of a deployment: metrics, the report page, validation, rows of logs, the changes of one key.

`metrics` follows the running stream; `report` shows the tables at the newest epoch; `validation` checks them.
`log_rows` decodes log files, `key_changes` explains one key, `overview` says up to which point of the logs the tables
are complete, and `instance_ids` which instance has which replica id, all without Spark. `space_history` has all
versions of a space's keys as a view of Spark. `status_page` serves a daemon's status. The package writes no table but
`_validations`.

Terms that all modules use:

- An *epoch* is the commit of one batch: a row of `_epochs`, which names the Delta version of every table.
- An *instant* is an epoch at which all replicasets are at one common point of a sharded cluster.
- A row is *settled* if it was applied, or never will be. The settled vclock is the one up to which all rows are
  settled.
- The *canonical key* of a row is its primary key in bytes that are equal if Tarantool's index calls the keys equal
  (`_key`).
- A *misfit* is a value that its column cannot hold: the column is NULL. A version is *unfit* if its tuple is not known.
- The table of a *masked* space hides some values; its *exact table* (`_exact_<space>`) has the complete rows.
- A *spool* is a folder with the rows that a daemon got from live masters; it is read as a source.
- The *leader* of a replicaset is the source that is read now.
"""
