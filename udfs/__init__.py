"""Computations per row or per key: Arrow UDFs and pure functions over Arrow arrays. No tables, no jobs.

Read in this order: `tuples` (a tuple to typed columns), `keys` (canonical primary keys), `operations` (UPDATE and
UPSERT), `versions` (the tuple after each change), `before_replace` (conflict policies), `remap` (replica ids), `rid`.
`buffers` turns Arrow arrays into flat memory for the compiled loops (*kernels*). `kernels` has the code that all
compiled loops share, and each package has its own loops in a `kernels` of its own.

A *canonical key* is a primary key in bytes that are equal for keys that Tarantool's index treats as equal.
"""
