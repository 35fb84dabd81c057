"""Tests of `pipeline.plan.ids`."""
