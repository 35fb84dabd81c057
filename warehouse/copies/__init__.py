"""Copies of a warehouse: the RID says what a copy has and whether it may be written; others bring it up to date.

Read first: `rid`, `sync` (copies a warehouse file by file, without Spark, so that it opens at one epoch), `standbys`.
"""
