"""The Delta tables and how each is written. No business rules."""
