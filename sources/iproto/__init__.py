"""Tarantool's binary protocol (IPROTO), as a replica speaks it.

`greeting`, `packet`, `messages`, `inflow` and `kernels` convert bytes without a socket; `wire` and `client` are the
asyncio driver. `space_pages` reads a space of a live server.
"""
