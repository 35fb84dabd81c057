"""Tests of the computations per row and per key."""
