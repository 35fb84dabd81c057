"""How long the aggregator's own tables keep what is over, and what stays longer since it could still be needed.

`sources` says what the configured sources can still bring, `progress` up to which time each replicaset was read;
`changelog` and `cleaning` say which rows go, and `write` takes them out. Who may do it:
`pipeline.requests.service`.
"""
