"""Conflict resolution (Tarantool's `before_replace`): pure functions that choose or make one tuple of several versions.

Read `candidate` (one replicaset's version of a key), `policy` (what a policy consists of), then `policies` (one module
each); `merge`, `custom` and `row` serve the policies that make a new tuple.
"""
