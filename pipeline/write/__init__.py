"""Files of tables: which of them have a batch's keys, what they become, and what is new.

`lookup` finds the versions before a batch, `rewrite` writes files without the rows that go, `tables` brings new rows
and touched files together. Functions of this package read and write files; only `prepare` commits.
"""
