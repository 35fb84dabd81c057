"""Finds the versions of keys before a batch, which the keyed rows change.

`requests` determines which keys must be looked up, `lookup` finds their versions: `space_tables` in the tables of
spaces, `versions_table` in `_versions`. `versions` defines versions as columns, `reduce_plan` is what a task needs to
know of the batch, `ranges` finds the versions that DELETE_RANGE rows may end, and `partitions` divides the keys among
tasks.
"""
