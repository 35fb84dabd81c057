"""Describes what the next run will change, as text and JSON, for `aggregator plan`."""
