"""Copying a warehouse to another location, file by file and without Spark, so that it opens at one epoch."""
