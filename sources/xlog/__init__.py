"""Reads and writes Tarantool's log files.

Read in this order: `format` (bytes, no I/O), `reader` (one file), `directory` (the files of a source), `stream`
(sources over time), then `options`, `spark_readers` and `datasource`: Spark's `format("xlog")`.
"""
