"""Removes rows of the aggregator's own tables after their retention time, unless they could still be needed.

`progress` checks what the configured sources can still bring, and up to which time each replicaset was read;
`changelog` and `cleaning` choose the rows, and `removal` removes them. `pipeline.requests.service` calls this.
"""
