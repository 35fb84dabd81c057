"""The steps of a start before its first batch: they apply changed masks, and rows that an old release left waiting."""
