"""Tests of `sources/backup`."""
