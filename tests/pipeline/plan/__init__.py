"""Tests of `pipeline.plan`."""
