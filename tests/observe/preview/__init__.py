"""Tests of the changes that `aggregator plan` prints."""
