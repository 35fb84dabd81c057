"""Looking into log files without Spark: what rows mean, which are wanted, how they are shown."""
