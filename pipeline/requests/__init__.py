"""Executes requests to the writer between two batches, each as an epoch of its own.

`service` takes requests from `_requests` and calls the other modules: `read_again` reads a source's files once more
(backfill), `healing` plans how a snapshot replaces a replicaset's state, `snapshots` reads it for a diverged source
or for single spaces, and `rebuild` chooses between stored versions under another policy.
"""
