"""Two writers of one warehouse, in all interleavings."""
