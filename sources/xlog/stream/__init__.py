"""Sources followed over time: which source leads, what a batch reads of it, and how tasks share that.

`follow` is the entrance; `takeover`, `course` and `plan` decide, `segment` is what they decide on. `batch` plans the
segments between two offsets, and `read` reads one in a task. `origins` and `members` know the replica ids of a
log, and `vinyl` finds rows from before a checkpoint.
"""
