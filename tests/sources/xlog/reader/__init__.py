"""Tests of reading one file."""
