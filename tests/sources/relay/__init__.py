"""Tests of `sources/relay`."""
