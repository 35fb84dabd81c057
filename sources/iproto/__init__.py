"""Tarantool's binary protocol from a replica's side: bytes ↔ messages without a socket, and an asyncio driver."""
