"""Entry points. Each parses, wires and runs; the steps of a micro-batch are in `pipeline`."""
