"""Tests of what is computed per row and per key."""
