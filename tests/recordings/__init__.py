"""Logs of real Tarantools with their truth (`2.6.0/`), and the script that records them (`record.py`)."""
