"""The log files of one source: which there are, in what order, where they end, and the replicaset they belong to.

`listing` is plain data, `directory` makes it from files, and `file_ends` finds and caches ends and block starts.
`offset` is a position in a source's logs as text, `identity` finds the source's replicaset, `paths` resolves globs.
"""
