"""Compiled loops over keys: canonical bytes, order, ranges."""
