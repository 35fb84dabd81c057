"""Proves that the tables have the same tuples as the live servers, key by key."""
