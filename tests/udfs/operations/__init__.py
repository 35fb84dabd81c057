"""Tests of UPDATE and UPSERT."""
