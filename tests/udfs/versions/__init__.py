"""Tests of a key's versions."""
