"""Conflict resolution (Tarantool's `before_replace`): pure functions that choose or make one tuple of several versions.

Read `policy` (what a policy gets, and what it returns), then `policies` (one module each); `merge`, `custom` and `row`
serve the policies that make a new tuple.
"""
