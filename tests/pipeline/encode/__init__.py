"""Tests of `pipeline.encode`."""
