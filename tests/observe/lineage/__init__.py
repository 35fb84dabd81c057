"""Tests of OpenLineage events."""
