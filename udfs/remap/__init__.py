"""Replica ids to global ids: `replica_ids` maps columns and vclocks, `cluster_replace` assigns global ids."""
