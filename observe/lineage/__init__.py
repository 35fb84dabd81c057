"""OpenLineage events of the stream's batches; `emitter` is the entry."""
