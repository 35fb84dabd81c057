"""The version of a key: its tuple in one replicaset after some rows of the log.

`key_state` applies the rows of one key, `all_versions` returns all versions of many keys. `kernels.lives` has the
compiled loop for keys without UPDATE and UPSERT.
"""
