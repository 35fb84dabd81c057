"""Tests of `pipeline.retention`."""
