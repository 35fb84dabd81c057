"""Plans a batch before any of its rows is processed: pure functions that turn state and control rows into a plan.

In the order of the work: `rows` summarizes the rows, `ids` decides which of them count and whose they are, `spaces`
which tables they change. `batch_plan` combines all of them, `state_after` computes the state after the batch, and
`healing` is what a snapshot replaces.
"""
