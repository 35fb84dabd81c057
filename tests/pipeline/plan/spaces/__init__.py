"""Tests of `pipeline.plan.spaces`."""
