"""Reads backups that `tt backup` has put into a storage, into directories of log files.

`manifest` lists the archives, `chain` finds missing ones, `unpack` writes an archive's files.
"""
