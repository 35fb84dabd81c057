"""The Delta tables and how each is written. No business rules.

Terms that all modules use:

- A *warehouse* is all Delta tables of one database. An *epoch* is the commit of one batch: a row of `_epochs`, which
  names the version of every table, and so a consistent snapshot of them.
- A row of a log is *settled* if it was applied, or never will be.
- The *applier map* says which instance a replica id means, and from which lsn on
  (`warehouse.system_tables.applier_map`).
- A warehouse may have copies. Its *RID* says which *generation* of the data it has, and whether it may be written; the
  *mark* of a RID says that the next epoch begins a new generation (`warehouse.copies.rid`). The *mark* of a commit is
  the writer's number and a count (`warehouse.delta.fence`).
- A *standby* is a copy that a job keeps connected: it gets each epoch (`warehouse.copies.standbys`).
"""
