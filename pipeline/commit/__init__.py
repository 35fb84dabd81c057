"""The end of a batch: one commit a table, `_epochs` last; and the state that a start loads from the tables.

`batch` shows the order, `records` says what a batch records of itself, `epoch` is the commit of the batch, `load` reads
the state.
"""
