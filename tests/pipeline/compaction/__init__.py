"""Tests of `pipeline.compaction`."""
