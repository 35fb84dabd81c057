"""Tests of `sources/subscribe`."""
