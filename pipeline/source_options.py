"""Builds the options of the data source `xlog` for a deployment, for the stream as well as for a backfill."""

from __future__ import annotations

import json

from config.deployment import Config
from config.subscribe import seconds
from pipeline.state import State


def stream_options(config: Config, state: State, cores: int) -> dict[str, str]:
    """Return the options of the data source `xlog` for a deployment; `cores` tasks read at a time.

    A replicaset that is not in the checkpoint (a new source, a lost checkpoint) is read from the tables' vclock on.
    """
    sources = [
        {"name": s.name, "path": s.path, "replicaset": s.replicaset, "origins": list(s.origins)}
        for s in config.sources
    ]
    return _instant_options(config) | {
        "sources": json.dumps([{k: v for k, v in s.items() if v} for s in sources]),
        "start": {"snapshot": "snapshot", "logs": "history"}[config.start],
        "startVclock": json.dumps(
            {uuid: {str(i): n for i, n in v.items()} for uuid, v in state.start_vclocks().items()}
        ),
        "heldVclock": json.dumps(
            {uuid: {str(i): n for i, n in v.items()} for uuid, v in state.waiting_start_vclocks().items()}
        ),
        "maxBytesPerTrigger": str(config.max_bytes_per_trigger),
        "maxBlockBytes": str(config.max_block_bytes),
        "minPartitions": str(cores),
        "gaps": "report",
        "on_source_error": config.on_source_error,
    }


def _instant_options(config: Config) -> dict[str, str]:
    if config.instants is None:
        return {}
    markers = [one.model_dump(exclude_none=True) for one in config.instants.markers]
    return {"instants": json.dumps(markers), "instantWait": str(seconds(config.instants.wait))}
