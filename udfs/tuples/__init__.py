"""MessagePack tuples to typed columns: `tuples` has the functions, `plan` and `columns` prepare memory for kernels.

`faults` writes the error texts, `masking` hides values, and `row_body` reads the other parts of a row's body.
"""
