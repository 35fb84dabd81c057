"""The parts of an installation that `aggregator setup` makes."""

PARTS = {
    "delta": "the jars of Delta, from Maven by Ivy",
    "kernels": "machine code of the kernels, a minute of one core",
    "batch-kernels": "machine code of the kernels of batches alone",
    "s3": "the jars that Spark needs for s3a://",
    "classes": "an archive of Java's classes, with which commands start seconds earlier (200 MB)",
}

DEFAULT_PARTS = ("delta", "kernels")
"""What each installation should have."""
