"""OpenLineage events of the stream's batches. `emitter` has what a job uses."""
