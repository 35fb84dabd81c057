"""A real Tarantool for tests: a server on a private unix socket and a simple client of its binary protocol.

Tests and the script that makes the recordings use them. They use none of the project's code, so a fault of the project
cannot hide itself.
"""

from tests.live.client import Connection, TarantoolError
from tests.live.server import Tarantool, find_tarantool

__all__ = ["Connection", "Tarantool", "TarantoolError", "find_tarantool"]
