"""Validates the tables with suites of Great Expectations: the aggregator's and the user's.

`check` defines a check and its result, and `checks` lists the checks of single tables. `spaces` and `secondary_keys`
check the tables of spaces. `validator` runs the checks.
"""
