"""Random histories of definitions and rows on real servers, whose logs become tables: the same ones for every cut.

`acts` makes a history from a seed, `play` plays it on servers and asks them what they hold at the end, `check`
aggregates their logs with the log cut into batches in various ways and compares (`known`: what is known of rows
beside their tuples; `hole`: a log that lacks a part, with a snapshot for it; `collected`: a directory whose logs up to
a snapshot are gone), `shrink` makes a failing history small.
`members` does the same for what members of a replicaset do: fail-over, joins, expulsions, ids that are given to others.
Acts are done by `acts.lua` inside the server. `python -m tests.histories --seeds 0:500` does many of them, with
`--distributed` by the distributed executor, too.

Left out, since the engine cannot follow them by design: collations in keys; decimals and doubles of one key that are
equal in 15 digits alone; on vinyl an UPSERT whose result might not fit a definition that changes, or, on 2.6, any one.
"""
