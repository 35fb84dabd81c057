"""The commands of `aggregator`: a module for each, with its options and help; `jobs.main` has the table of all."""
