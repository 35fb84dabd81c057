"""Copying a warehouse onto another place, file by file and without Spark, so that it opens at one cut."""
