"""Processes micro-batches, from the bytes of logs to the commit of an epoch.

Read `batch` first (`BatchWriter.process` calls all stages), then `work` (what the stages hand on), `partition` (the
core of a batch, for any set of keys), `state` (what the writer knows between two batches) and `planning`. Each stage is
a package: `plan`, `changelog`, `lookup`, `reduce`, `resolve`, `encode`, `write`, `commit`. The terms are in
docs/glossary.md.
"""
