"""The subscription daemon: it copies the rows of live replicasets into spools.

`daemon` runs several replicasets, and `replicaset` follows one: it polls the peers (`link`), decides which peer sends
the rows of which instance (`assignment`), receives a snapshot or a stream (`feed`) and merges the rows
(`merge`).
"""
