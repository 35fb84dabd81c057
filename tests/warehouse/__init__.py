"""Tests of the Delta tables and of the writer lock."""
