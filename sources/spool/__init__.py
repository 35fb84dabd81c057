"""A spool: a directory of standard `.snap` and `.xlog` files that the subscription daemon fills for one replicaset.

`spool` writes the files, `state` finds from them where the spool ends, `catalog` knows its files and instances, `acks`
stores up to where each reader has read, and `disk_space` chooses the files that no reader needs.
"""
