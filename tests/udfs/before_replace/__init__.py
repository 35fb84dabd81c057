"""Tests of before_replace."""
