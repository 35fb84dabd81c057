"""What a batch means, decided before any of its rows is moved: pure functions from state and control rows to a plan.

In the order in which they work: `position` names places and parts of the log; `transactions` and `summary` say what
a part of the log holds; `members` translates replica ids of members that disagree; `settle` says which rows count;
`control` follows the system spaces, `generation` a snapshot behind a hole; `advance` gives the replicaset after the
batch; `history` says what a space id means at each place; `tables` which table gets what; `plan` puts them together.
"""
