"""Logs of real Tarantools with their truth: recorded ones (`2.6.0/`), and the script that records (`record.py`)."""
