"""Tests of the story of one key."""
