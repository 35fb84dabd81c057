"""What is expected of the tables, as suites of Great Expectations: ours, the user's own, and what comes of them."""
