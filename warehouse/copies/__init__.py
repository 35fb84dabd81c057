"""Copies of a warehouse: the RID, which says what a copy has and whether it may be written, and what brings it up to date.

Read first: `rid`, `sync` (copies a warehouse file by file, without Spark, so that it opens at one epoch), `standbys`.
"""
