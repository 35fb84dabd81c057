"""The whole story of one key, read from the tables without Spark."""
