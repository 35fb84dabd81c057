"""Compiled loops over the rows of each key."""
