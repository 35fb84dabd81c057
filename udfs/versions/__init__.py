"""The version of a key: its tuple in one replicaset after some rows of the log.

Read `version` (the data), then `fold_state` (one key, row by row); `fold` and `history` use it for one key and many.
`kernels.lives` does the same compiled, for keys without UPDATE and UPSERT.
"""
