"""Compiled loops over the elements of a container."""
