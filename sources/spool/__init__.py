"""A spool: a directory of standard `.snap` and `.xlog` files that the subscription daemon fills for one replicaset."""
