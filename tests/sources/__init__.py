"""Tests of the sources of rows."""
