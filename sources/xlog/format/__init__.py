"""Tarantool's log format, without I/O: bytes in, Arrow batches or numbers out, and the other way round.

`meta` is a file's text header, `block` the unit that Tarantool checks and compresses, `decoder` takes groups of blocks
to batches by `rows` and the compiled `kernels`, `headers` reads numbers alone. `selection` says which rows are wanted,
`damage` what happens to bad ones. `encode` and `writer` write; `vylog` and `vclock` are formats of their own.
"""
