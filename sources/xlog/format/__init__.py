"""Tarantool's log format, without I/O: bytes to Arrow batches or to columns of row headers, and rows to bytes.

`meta` is a file's text header, `block` the unit that Tarantool checks and compresses; `decoder` turns blocks into
batches with `rows` and the compiled `kernels`. `selection` says which rows are wanted, `damage` what to do about bad
ones. `rows.Headers` has the columns of the row headers alone, as numpy arrays. `encode` and `writer` write; `vylog` and
`vclock` are formats of their own.
"""
