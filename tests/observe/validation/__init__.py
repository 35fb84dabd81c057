"""Tests of what is expected of the tables."""
