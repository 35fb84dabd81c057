"""The steps of one micro-batch, one module a step, in the order in which rows pass them."""
