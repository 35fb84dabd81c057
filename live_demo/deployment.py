"""Writes the demonstration's configuration: one YAML file for the daemon and the stream, as a user would write it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

STREAM, DAEMON = "stream", "daemon"


def deployment_yaml(socket: Callable[[str], Path], stream_port: int, daemon_port: int) -> str:
    """Return the text of the file; its paths are relative to its folder.

    Parameters
    ----------
    socket : callable
        Returns the unix socket of a member by its name.
    stream_port, daemon_port : int
        Ports on which stream and daemon serve `/metrics` and `/status`.

    """
    config = {
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
    return yaml.safe_dump(config, sort_keys=False)
