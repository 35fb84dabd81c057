"""Writes files of tables again: small ones after a batch or by maintenance, and those of which rows are removed.

`choose` decides which files are joined (`pipeline.write.limits` has the limits), `rewrite` reads and writes them,
`after_batch` joins files of the tables that a batch wrote.
"""
