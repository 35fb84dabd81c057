"""The commands of `aggregator`: names, options, help and examples; a command imports its work when it is called."""
