"""Which rows count, under which replica ids, and by the rules of which server. Pure.

`view` is what a batch reads of a replicaset; `members` translates replica ids where members of a replicaset disagree,
`settle` decides which rows take effect, `generation` applies a snapshot after a gap, and `upgrades` finds the versions
of the servers.
"""
