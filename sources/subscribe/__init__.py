"""The subscription daemon: it copies the rows of live replicasets into spools.

`daemon` follows several replicasets, and `replicaset` one: it polls the servers, called *peers* (`peer_state`), decides
which peer sends the rows of which instance (`assignment`), receives a snapshot or streams (`peer_rows`), compares them
with what a peer sent before (`rewind`), merges the streams by time (`merge`), and filters rows (`whitelist`).
"""
