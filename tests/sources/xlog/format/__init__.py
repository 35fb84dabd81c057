"""Tests of the log format."""
