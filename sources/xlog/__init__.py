"""Tarantool's log files: format (no I/O) → reader → Spark data source `format("xlog")`, and a writer."""
