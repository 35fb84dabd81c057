"""Opens the logs of a deployment: the options of its sources, as text for Spark, and their stream in this process."""

import json

from config.deployment import Config
from config.subscribe import seconds
from pipeline.state import State
from sources.xlog.options import parse_options
from sources.xlog.stream.instants import log_stream_of
from sources.xlog.stream.log_stream import LogStream


def open_log_stream(
    config: Config,
    state: State,
    *,
    cores: int = 1,
    at_instants: bool = False,
    skip_unreadable: bool = False,
) -> LogStream:
    """Return the logs of a deployment's sources as one stream.

    Args:
        at_instants: Whether offsets end at the configured instants, as those of the job do.
        skip_unreadable: Whether a source that cannot be read is left out, whatever the configuration says; the caller
            shows the stream's `unreadable_sources`.
    """
    skip = {"on_source_error": "skip"} if skip_unreadable else {}
    options = parse_options(stream_options(config, state, cores) | skip)
    log_stream = log_stream_of(options) if at_instants else LogStream(options)
    log_stream.logs_unreadable = not skip_unreadable
    return log_stream


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
