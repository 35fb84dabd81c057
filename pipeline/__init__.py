"""One micro-batch, from bytes of logs to the commit of an epoch."""
