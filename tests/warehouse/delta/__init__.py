"""Tests of `warehouse.delta`."""
