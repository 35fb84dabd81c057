"""What a start does once, before its first batch: masks that changed, and rows that an older version left waiting."""
