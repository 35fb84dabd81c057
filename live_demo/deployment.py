"""The configuration of the demonstration, one file for the daemon and for the stream, as a user writes it.

Pure: addresses and folders in, text out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

STREAM, DAEMON = "stream", "daemon"


def deployment(socket: Callable[[str], Path], stream_port: int, daemon_port: int) -> str:
    """Return the file's text; its paths are relative to its own folder.

    Parameters
    ----------
    socket : callable
        Returns where the member of a name listens.
    stream_port, daemon_port : int
        Where `/metrics` and `/status` are served.

    """
    whole = {
        "warehouse": "warehouse",
        "checkpoint": "checkpoint",
        "trigger": "3 seconds",
        "sources": [{"name": name, "path": f"spool/{name}"} for name in ("a", "b")],
        "policies": {"spaces": {"accounts": {"sequence": ["updated"]}}},
        "metrics": {"status": f"127.0.0.1:{stream_port}", "log": "stream.jsonl"},
        "subscribe": {
            "status": f"127.0.0.1:{daemon_port}",
            "replicasets": [
                {
                    "name": name,
                    "spool": f"spool/{name}",
                    "peers": [f"unix/:{socket(name + number)}" for number in ("1", "2")],
                }
                for name in ("a", "b")
            ],
        },
    }
    return yaml.safe_dump(whole, sort_keys=False)
