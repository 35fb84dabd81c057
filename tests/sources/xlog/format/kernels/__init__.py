"""Tests of the compiled kernels, at the edge of readable memory."""
