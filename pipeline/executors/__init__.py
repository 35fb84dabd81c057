"""Execute a planned batch: the local executor in this process, the distributed one in Spark's tasks.

Both call the same functions (`pipeline.changelog`, `pipeline.partition`, `pipeline.write`). `pipeline.work` defines
their input and output.
"""
