"""Tests of metrics, the report, validation, and commands that look into logs and keys."""
