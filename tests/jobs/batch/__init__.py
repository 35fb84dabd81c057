"""Tests of the steps of a micro-batch; those of pure steps need neither Spark nor tables."""
