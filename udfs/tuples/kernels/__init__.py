"""Compiled loops that write the fields of tuples into typed columns and variants."""
