"""Tests of looking into logs."""
