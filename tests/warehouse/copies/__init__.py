"""Tests of copying a warehouse."""
