"""What rows look like: the xrow, the Delta tables, a space's format, names, errors. No I/O, no session."""
