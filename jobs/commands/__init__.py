"""The commands of `aggregator`: their names, options, help and examples; each imports its work when it is called."""
