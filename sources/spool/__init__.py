"""A spool: a directory of standard `.snap` and `.xlog` files that the subscription daemon fills for one replicaset.

`spool` writes it, `state` reads its state from the files, `acks` stores how far each reader is, and `disk_space`
removes files that no reader needs.
"""
