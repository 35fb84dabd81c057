"""Rows of a segment → rows of `_changelog`, keyed rows for the reduction, and rows that wait.

`segment_plan` is what a task needs to know of a segment, `rows` splits and remaps its rows, `divergence` compares rows
that were read before, `cluster_rows` are the aggregator's own changes of `_cluster`.
"""
