"""Unpacks backups into directories of log files; `tt backup` has uploaded them to a storage.

`manifest` parses the list of archives and finds gaps between them, `unpack` writes the files of an archive.
"""
