"""Tests of the report's page."""
