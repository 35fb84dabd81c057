"""The version of a key: its tuple in one replicaset after some rows of the log.

`fold` applies the rows of one key, `history` returns all versions of many keys. `kernels.lives` has the compiled loop
for keys without UPDATE and UPSERT.
"""
