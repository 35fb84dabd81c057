"""Metrics, structured logs and named warnings of the running stream. Off unless the configuration has `metrics`."""
