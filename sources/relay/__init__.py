"""The relay: serves the rows of a spool over IPROTO, to subscription daemons and to anonymous replicas of Tarantool.

`server` accepts connections, `session` answers one client, `row_packets` encodes the rows. A spool's
files and instances are found by `sources.spool.catalog`.
"""
