"""Tests of `sources/iproto`."""
