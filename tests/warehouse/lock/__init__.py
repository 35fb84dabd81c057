"""Tests of `warehouse.lock`."""
