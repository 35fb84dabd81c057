"""Winning versions → the typed columns of their tables (`columns`)."""
