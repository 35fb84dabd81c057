"""Benchmarks. Each module compares two sides in one run, and prints the ratios of their times; none is a test."""
