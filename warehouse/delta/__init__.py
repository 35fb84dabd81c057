"""One Delta table. Read first: `table_files`, the only door to the rows of a data file."""
