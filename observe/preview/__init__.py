"""Describes what the next run will do differently from the last one, as text and JSON."""
