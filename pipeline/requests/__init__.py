"""Work that others ask of the writer, done between two batches, each as an epoch of its own.

`service` takes requests from `_requests` and calls the rest: `read_again` reads a source's files once more (backfill),
`generation` lets a snapshot replace a state, `heal` does that for a diverged source, `take_again` for single spaces,
and `rebuild` chooses between stored versions under another policy.
"""
