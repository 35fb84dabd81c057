"""Tests of backups as sources."""
