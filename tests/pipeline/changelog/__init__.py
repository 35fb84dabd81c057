"""Tests of `pipeline.changelog`."""
