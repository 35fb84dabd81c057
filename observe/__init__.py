"""What users see of a deployment: metrics, the report page, validation, rows of logs, the changes of one key.

`metrics` follows the running stream; `report` shows the tables at the newest epoch; `validation` checks them.
`log_rows` decodes log files, `key_changes` explains one key, `overview` says up to which point of the logs the tables
are complete, and `instance_ids` which instance has which replica id, all without Spark. `space_history` has all
versions of a space's keys as a view of Spark. `status_page` serves a daemon's status. The package writes no table but
`_validations`.
"""
