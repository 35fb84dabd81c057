"""Tests of `pipeline.plan.rows`."""
