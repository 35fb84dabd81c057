"""Backups that `tt backup` has put into a storage, as directories of log files.

`manifest` and `chain` say what there is and what is missing, `unpack` writes an archive's files. Not here: reading log
files (`sources.xlog`).
"""
