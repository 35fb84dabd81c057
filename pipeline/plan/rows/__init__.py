"""What the rows of a batch are, without their contents. Pure.

`position` defines positions and segments of the log; `transactions` and `summary` summarize a part of the log.
"""
