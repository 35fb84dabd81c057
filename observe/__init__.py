"""What people see of a deployment: metrics, the report page, validation, the rows of logs, the changes of one key.

`metrics` follows the running stream; `report` draws the tables at the newest epoch; `validation` checks them;
`log_rows` decodes log files, and `key_changes` explains one key, both without Spark. `status_page` serves a daemon's
numbers. Nothing here changes a table but `_validations`.
"""
