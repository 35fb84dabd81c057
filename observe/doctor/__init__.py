"""Checks a deployment before a run: `gather` collects facts, pure checks turn them into findings."""
