"""Reads and writes files of tables: finds a batch's keys in them, removes rows, and adds new rows.

`lookup` finds the versions before a batch, `rewrite` writes files without the removed rows, `tables` joins new rows
with changed files. Functions of this package read and write files; only `prepare` commits.
"""
