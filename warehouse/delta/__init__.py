"""One Delta table: where it is, its files, its log, and commits to it.

Read first: `location`, `table_files` (the only door to the rows of a data file), `commits` (the writer's open tables).
"""
