"""The subscription daemon: which peer feeds which instance's rows, and their way into a spool."""
