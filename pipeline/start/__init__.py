"""Work of a start, before its first batch: changed masks are applied, and rows that an old release left waiting."""
