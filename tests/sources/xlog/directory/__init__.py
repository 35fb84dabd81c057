"""Tests of a source's files."""
