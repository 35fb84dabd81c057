"""What users see of a deployment: metrics, the report page, validation, rows of logs, the changes of one key.

`metrics` follows the running stream; `report` shows the tables at the newest epoch; `validation` checks them;
`log_rows` decodes log files, `key_changes` explains one key, `overview` says how far the tables are, and `instance_ids`
who has which id, all without Spark; `space_history` has all versions of a space's keys as a view of Spark.
`status_page` serves a daemon's status. Of all tables, only `_validations` is written here.
"""
