"""Common parts of entry points: Spark sessions, options and exit codes, progress, running as a daemon.

Start with `command_line`; `session` makes Spark's session, `steps` logs each long step.
"""
