"""Reads and writes files of tables: finds a batch's keys in them, removes rows, and adds new rows.

`lookup` finds the versions before a batch, `tables` writes new rows and the remaining rows of changed files,
`system_rows` rows of the aggregator's own tables. Functions of this package read and write files; only `prepare`
commits.
"""
