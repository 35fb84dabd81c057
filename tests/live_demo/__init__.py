"""Tests of the live demonstration."""
