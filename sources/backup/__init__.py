"""Unpacks backups that `tt backup` has uploaded to a storage into directories of log files.

`manifest` lists the archives and finds gaps between them, `unpack` writes an archive's files.
"""
