"""The metrics of what batches cost (`pipeline.commit.costs`).

| metric | |
|---|---|
| `aggregator_written_bytes_total{kind}` | bytes written to tables of spaces: `data`, `vectors`, `compaction` |
| `aggregator_changed_bytes_total` | of the data, the part of the batches' own rows; the quotient is the amplification |
| `aggregator_key_copy_searches_total{result}` | searches of data files for keys: by a copy (`hit`), or without one |
| `aggregator_key_copy_bytes` | the size of the folder of key copies on the driver's machine |
| `aggregator_deleted_rows_ratio{table}` | of a table with deletion vectors: the share of its rows that is deleted |
| `aggregator_compaction_debt_bytes{table}` | of such a table: the size of the files that compaction is to write again |
"""

from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.commit.costs import BatchCosts


class CostMetrics:
    """Counts the costs of batches; its caller holds a lock."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.last: BatchCosts | None = None
        """The costs of the newest batch; None before the first one."""
        self._written = Counter(
            "aggregator_written_bytes", "Bytes written to tables of spaces", ["kind"], registry=registry
        )
        self._changed = Counter(
            "aggregator_changed_bytes", "Bytes of the changed rows in written files", registry=registry
        )
        self._searches = Counter(
            "aggregator_key_copy_searches",
            "Searches of data files for keys, by a key copy or without",
            ["result"],
            registry=registry,
        )
        self._copy_bytes = Gauge("aggregator_key_copy_bytes", "Size of the key copies", registry=registry)
        self._deleted = Gauge(
            "aggregator_deleted_rows_ratio",
            "Share of a table's rows that is deleted",
            ["table"],
            registry=registry,
        )
        self._due = Gauge(
            "aggregator_compaction_debt_bytes",
            "Size of a table's files that compaction is to write again",
            ["table"],
            registry=registry,
        )

    def count(self, costs: BatchCosts) -> None:
        """Add the costs of a batch."""
        self.last = costs
        by_kind = {
            "data": costs.data_bytes,
            "vectors": costs.vector_bytes,
            "compaction": costs.compaction_bytes,
        }
        for kind, size in by_kind.items():
            self._written.labels(kind).inc(size)
        self._changed.inc(costs.changed_bytes)
        for result, count in (("hit", costs.copies.used), ("miss", costs.copies.missed)):
            self._searches.labels(result).inc(count)
        for table, debt in costs.debts.items():
            self._deleted.labels(table).set(debt.deleted_share)
            self._due.labels(table).set(debt.due_bytes)

    def set_copy_bytes(self, size: int) -> None:
        """Set the size of the folder of key copies."""
        self._copy_bytes.set(size)
