"""Expectations of the tables, as suites of Great Expectations (ours and the user's), and their results.

`check` says what a check is, `checks` is the table of them; `spaces` and `secondary_keys` check the tables of spaces,
`validator` runs all.
"""
