"""Tests of what `aggregator doctor` finds."""
