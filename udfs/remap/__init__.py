"""Replica ids to global ids: `replica_ids` maps rows, `cluster_replace` assigns global ids."""
