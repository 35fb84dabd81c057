"""Tests of the validation of the tables."""
