"""Tests of `warehouse.system_tables`."""
