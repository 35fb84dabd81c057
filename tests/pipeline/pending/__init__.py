"""Tests of `pipeline.pending`."""
