"""One Delta table: its log, the deletion vectors of its files, and commits to it."""
