"""Expectations of the tables, as suites of Great Expectations (ours and the user's), and their results."""
