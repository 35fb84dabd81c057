"""Measurements. Each module prints its ratios, taken in one run; nothing here is a test."""
