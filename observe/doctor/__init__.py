"""Checks a deployment before a run: `gather` collects facts, and functions without I/O turn them into findings.

A *spool* is a folder in which the daemon of the section `subscribe` stores the rows that it gets from live masters;
`run` reads it as a source.
"""
