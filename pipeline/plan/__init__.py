"""Plans a batch before any of its rows is processed: pure functions that turn state and control rows into a plan.

In the order of the work: `position` defines positions and segments of the log; `transactions` and `summary` summarize
a part of the log; `members` translates replica ids where members disagree; `settle` decides which rows take effect;
`control` follows the system spaces, and `generation` a snapshot after a gap; `advance` computes the replicaset's state
after the batch; `history_builder` finds what space ids mean (`history`), and `router` their tables; `tables` plans
each table, `masks` what readers of a masked space see, `healing` what a snapshot replaces; `batch_plan` combines all of
them.
"""
