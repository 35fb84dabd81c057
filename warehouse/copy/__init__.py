"""Copying a warehouse to another place, file by file and without Spark, so that it opens at one epoch."""
