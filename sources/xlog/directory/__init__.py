"""The log files of one source: which are there, in what order, where they end, whose they are.

`listing` is plain data, `directory` fills it from files, `ends` remembers what was read of them. `offset` is a position
in a source's logs as text, `identity` the source's replicaset, `paths` resolves wildcards.
"""
