"""Tarantool's binary protocol (IPROTO), as a replica speaks it.

`greeting`, `packet`, `messages`, `row_stream` and `kernels` convert bytes without a socket. `wire` and `client` send
and receive these bytes with asyncio. `address` says where to connect, and `space_pages` reads a space of a live server.
"""
