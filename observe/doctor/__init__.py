"""Checks a deployment before a run: a module for each subject gathers facts, and turns them into findings."""
