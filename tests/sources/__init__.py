"""Tests of where rows come from."""
