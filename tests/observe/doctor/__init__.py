"""Tests of the findings of `aggregator doctor`."""
