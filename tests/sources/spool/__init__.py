"""Tests of `sources/spool`."""
