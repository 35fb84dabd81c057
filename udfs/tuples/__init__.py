"""MessagePack tuples to typed columns: `tuples` has the functions, `columns` allocates the memory for kernels.

`masking` hides values, and `row_body` reads the parts of a row's body that have no column.
"""
