"""Compiled loops over keys: canonical bytes, order, hashes, ranges."""
