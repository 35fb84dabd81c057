"""The relay: serves a spool over IPROTO, to subscription daemons and to anonymous replicas of Tarantool itself."""
