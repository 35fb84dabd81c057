"""The decoder's hot path, compiled by numba: block chain, MessagePack, rows into Arrow's buffers.

Pure functions over arrays. They check every bound themselves, since compiled code does not.
A module's machine code is cached beside it and made anew when *that* file changes, not when one that it
imports does: after a change here, delete `__pycache__`.
"""
