"""Entry points: each one parses options, connects the parts and runs them; `pipeline` has a batch's steps.

Start with `aggregate`. `commands` defines the command line, `runtime` has the common parts.

An *epoch* is the commit of one batch: a row of `_epochs`, which names the version of every table. A *spool* is a folder
with the rows that `subscribe` got from live masters; `aggregate` reads it as a source. A replicaset may have several
sources, and one of them at a time is read: its *leader*. `warehouse` explains the terms of copies: RID, generation,
mark, standby.
"""
