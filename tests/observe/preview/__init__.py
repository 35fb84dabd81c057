"""Tests of what `aggregator plan` says."""
