"""Tests of the RID's value, operations and comparison."""
