"""What users see of a deployment: metrics, the report page, validation, rows of logs, the changes of one key.

`metrics` follows the running stream; `report` shows the tables at the newest epoch; `validation` checks them;
`log_rows` decodes log files, and `key_changes` explains one key, both without Spark; `space_history` returns all
versions of a space's keys as a view of Spark. `status_page` serves a daemon's status. Of all tables, only
`_validations` is written here.
"""
