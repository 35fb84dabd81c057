"""Work of a start, before its first batch: it applies changed masks, and rows that an old release left waiting."""
