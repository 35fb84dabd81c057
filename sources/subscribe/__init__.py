"""The subscription daemon: it reads the rows of a replicaset's instances from their peers into a spool."""
