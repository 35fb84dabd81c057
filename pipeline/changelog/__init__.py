"""Rows of a segment → rows of `_changelog`, keyed rows for the reduction, and rows that wait.

`segment_plan` plans a segment for its task, `rows` divides and remaps its rows, `keyed_rows` adds the canonical keys,
`divergence` compares rows that are read again with those of the first time, `cluster_rows` returns the aggregator's own
changes of `_cluster`.
"""
