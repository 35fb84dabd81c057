"""The rows of keys that are to be forgotten: which rows these are (`keys`), and which files still hold them (`search`).

The removal itself is in `jobs.forget`, `pipeline.retention.forgotten`, `warehouse.delta.earlier_versions` and
`sources.spool.rewrite`.
"""
