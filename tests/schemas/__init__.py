"""Tests of `schemas`."""
