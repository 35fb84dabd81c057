"""Writes files of tables: new rows, and the remaining rows of files with removed rows.

`changes` writes those of spaces' tables, `system_rows` those of the aggregator's own; `limits` has the limits of files.
Functions of this package read and write files; only `prepare` commits.
"""
