"""Tests of `pipeline.resolve`."""
