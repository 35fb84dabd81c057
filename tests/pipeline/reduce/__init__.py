"""Tests of `pipeline.reduce`."""
