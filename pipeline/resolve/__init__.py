"""Each replicaset's versions of a key → the row of the table, and the record of the decision: before_replace.

`resolve_plan` is what a task needs to know of the batch, `choose` is before_replace over the versions of contended
keys, `resolve` applies it to a batch's changes, `records` makes the rows of `_versions`, `_conflicts`, `_quarantine`.
"""
