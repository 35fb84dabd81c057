"""The relay: serves the rows of a spool over IPROTO, to subscription daemons and to anonymous replicas of Tarantool.

`server` accepts connections, `session` answers one client, `catalog` knows the spool's files and instances, `outflow`
encodes the rows.
"""
