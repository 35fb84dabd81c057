"""Tests of `pipeline.commit`."""
