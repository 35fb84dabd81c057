"""Tests of metrics, logs and warnings."""
