"""Tests of replica ids and global ids."""
