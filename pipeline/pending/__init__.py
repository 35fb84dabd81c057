"""Rows of `_pending`, and where they come among the log segments of a batch.

`rows` reads them, `log_segments` describes the segments of a batch for its plan, and `order` inserts the pending rows
among them.
"""
