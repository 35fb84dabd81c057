"""Causes each condition of `schemas.conditions` on real servers, and checks who tells of it, and when it is over."""
