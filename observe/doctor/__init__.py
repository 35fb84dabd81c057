"""Checks a deployment before a run: `gather` collects facts, and functions without I/O turn them into findings."""
