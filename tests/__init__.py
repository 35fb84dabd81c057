"""The tests: a mirror of the tree. What needs Spark is marked `spark`, what needs a Tarantool `live`."""
