"""Tests of `pipeline.lookup`."""
