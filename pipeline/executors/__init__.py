"""Who carries a planned batch out: the local executor in this process, the distributed one in Spark's tasks.

Both call the same functions (`pipeline.changelog`, `pipeline.bucket`, `pipeline.write`); `work` is what they are
given and what they give back.
"""
