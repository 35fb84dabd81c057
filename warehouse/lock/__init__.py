"""One writer: the lock of a warehouse, on a local disk or as a lease in an object store."""
