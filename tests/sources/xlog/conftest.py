"""Hypothesis for the tests of the log format: no deadline, since a kernel's first call compiles it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("xlog", deadline=None)
settings.load_profile("xlog")
