"""What an installation needs besides Python packages, for `aggregator setup`: read `spark_jars` first."""
