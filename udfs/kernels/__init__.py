"""Compiled loops over flat buffers: bytes and numpy arrays in, numpy arrays out. No Arrow, no Spark."""
