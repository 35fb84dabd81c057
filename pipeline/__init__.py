"""Processes micro-batches, from the bytes of logs to the commit of an epoch.

The terms that the modules use; docs/glossary.md has more:

- *Segment*: a part of one log file that a batch reads, or waiting rows of one file. Segments are numbered in a batch.
- *Settled*: a row is settled when it is in `_changelog`. The settled vclock has the last such lsn of each replica id.
- *Waiting*: a row that was read but cannot be decided yet is in `_pending`, and later batches read it from there.
- *Epoch*: a row of `_epochs`. It commits a batch, and names the version of each table.
- *Instant*: an epoch at which all replicasets have reached markers of the same label in their logs.
- *Spool*: a directory of logs that the subscription daemon fills from live servers.
- *Generation*: a snapshot that replaces a replicaset's state, because logs before it are lost (`plan.ids.generation`).
- *Applier map*: the instance that each replica id means, from which lsn on. Global ids number the instances of all
  replicasets.
- *Lineage*: a space from its creation to its drop. An *era* is the part of a lineage with one primary key, and a *slot*
  is the number of an era of a lineage in a batch.
- *Meaning*: what a space id means from a position in the log on: its definition, table, lineage and era.
- *Canonical key*: the primary key as bytes that are equal if Tarantool's index calls two keys equal.
- *Version*: what one replicaset has under a key: a tuple, a deletion, or an unfit tuple. The *base version* is the one
  before the batch.
- *Misfit*: a value that does not fit its column. A version is *unfit* if its tuple is not known, or was left out of the
  table because of a misfit.
- *Exact table*, *masked table*: a space with masked fields has two tables. The exact one has the whole tuples, and
  readers use the masked one. Other spaces have an exact table only.
"""
