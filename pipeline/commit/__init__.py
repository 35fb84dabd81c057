"""Commits a batch, with one commit per table and `_epochs` last, and loads the writer's state from the tables.

`batch` has the order of the commits and the rows of system tables, `epoch` the commit of the batch, `load` the state.
"""
