"""Winning versions → the columns of their tables: `columns` types them, `masks` hides fields from readers."""
