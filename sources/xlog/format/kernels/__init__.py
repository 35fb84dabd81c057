"""The decoder's hot path, compiled by numba: block chain, MessagePack, rows into Arrow's buffers.

Pure functions over arrays. They check every bound themselves, since compiled code does not.
"""
