"""Metrics, structured logs and named warnings of the running stream; off without the section `metrics`."""
