"""The Delta tables and how each is written. No business rules.

Read `warehouse` (the tables by name), `delta.commits` and `delta.fence` (one commit, and who may make it), `lock.lock`,
`system_tables.epochs` (the commit of a batch) and `copies.primary` (which copy may be written). The terms are in
docs/glossary.md.
"""
