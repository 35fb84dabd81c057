"""One Delta table: its files, its log, and commits to it.

Read first: `table_files` (the only door to the rows of a data file), `deletion_vectors` (which of them are deleted).
"""
