"""The log files of one source: which there are, in what order, where they end, and the replicaset they belong to.

`listing` is plain data; `directory` makes it from files, and finds where they end and where their blocks start.
`offset` is a position in a source's logs as text, `paths` resolves globs.
"""
