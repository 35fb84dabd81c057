"""All changes of one key, read from the tables without Spark; `reader` is the entry."""
