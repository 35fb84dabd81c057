"""What entry points share: Spark sessions, common options and exit codes, progress, running as a daemon."""
