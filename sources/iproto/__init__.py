"""Tarantool's binary protocol as a replica speaks it: bytes ↔ messages without a socket, and an asyncio driver."""
