"""Creates the OpenLineage events of a batch: the job, its inputs (sources), its outputs (tables). No I/O.

Names of datasets follow OpenLineage's naming conventions (openlineage.io/docs/spec/naming): a path of this machine is
in the namespace `file` with the path as its name, a path in an object store in `s3://bucket` with the key. Each table
also has its SQL name as a symlink. `observe.lineage.emitter` sends the events.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlparse

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    processing_engine_run,
    schema_dataset,
    storage_dataset,
    symlinks_dataset,
)

from sources.xlog.directory.offset import OffsetEntry

PRODUCER = "urn:tarantool-aggregator"
"""URI of the producer of the events."""


@dataclass(frozen=True)
class BatchRun:
    """One attempt at a batch."""

    run_id: str
    """A uuid. If a batch is repeated since the job was killed, the repetition has another one."""
    namespace: str
    job_name: str
    """OpenLineage's namespace and name of the job."""
    spark_version: str


@dataclass(frozen=True)
class WrittenTable:
    """A table that a batch wrote."""

    name: str
    """The SQL name, with the database."""
    uri: str
    """Path or URI of the table's folder."""
    version: int
    columns: tuple[tuple[str, str, str], ...]
    """(Name, type, description) of each column."""


def dataset_namespace_and_name(uri: str) -> tuple[str, str]:
    """Return (namespace, name) of the dataset at a path or URI, as OpenLineage names it."""
    parts = urlparse(uri)
    if parts.scheme in ("", "file"):
        return "file", str(Path(parts.path if parts.scheme else uri).absolute())
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    return f"{scheme}://{parts.netloc}", parts.path.strip("/") or "/"


def read_datasets(
    start: Mapping[str, OffsetEntry], end: Mapping[str, OffsetEntry], path_by_source: Mapping[str, str]
) -> list[InputDataset]:
    """Return the sources that a batch read, as input datasets."""
    read = {entry.leader for uuid, entry in end.items() if start.get(uuid) != entry}
    return [
        InputDataset(*dataset_namespace_and_name(path_by_source[name]))
        for name in sorted(read & path_by_source.keys())
    ]


def output_datasets(tables: Iterable[WrittenTable]) -> list[OutputDataset]:
    """Return the tables that a batch wrote as output datasets, each with its schema and its Delta version."""
    return [
        OutputDataset(
            *dataset_namespace_and_name(table.uri),
            facets={
                "schema": schema_dataset.SchemaDatasetFacet(
                    fields=[
                        schema_dataset.SchemaDatasetFacetFields(name, type_, text, ordinal_position=number)
                        for number, (name, type_, text) in enumerate(table.columns, start=1)
                    ],
                    producer=PRODUCER,
                ),
                "version": dataset_version_dataset.DatasetVersionDatasetFacet(
                    str(table.version), producer=PRODUCER
                ),
                "storage": storage_dataset.StorageDatasetFacet("delta", "parquet", producer=PRODUCER),
                "symlinks": symlinks_dataset.SymlinksDatasetFacet(
                    [symlinks_dataset.Identifier("spark_catalog", table.name, "TABLE")],
                    producer=PRODUCER,
                ),
            },
        )
        for table in tables
    ]


def run_event(
    run: BatchRun,
    state: RunState,
    at: datetime,
    inputs: list[InputDataset],
    outputs: list[OutputDataset],
    error: BaseException | None = None,
) -> RunEvent:
    """Return one event of a run.

    Args:
        error: Why the batch failed; the event has the message, but no traceback, which may show values of rows.
    """
    engine = processing_engine_run.ProcessingEngineRunFacet(run.spark_version, "spark", producer=PRODUCER)
    failed = (
        {}
        if error is None
        else {
            "errorMessage": error_message_run.ErrorMessageRunFacet(
                f"{type(error).__name__}: {error}", "python"
            )
        }
    )
    return RunEvent(
        eventTime=at.isoformat(),
        producer=PRODUCER,
        run=Run(run.run_id, {"processing_engine": engine, **failed}),
        job=Job(
            run.namespace,
            run.job_name,
            {
                "jobType": job_type_job.JobTypeJobFacet(
                    "STREAMING", "TARANTOOL_AGGREGATOR", "JOB", producer=PRODUCER
                )
            },
        ),
        eventType=state,
        inputs=inputs,
        outputs=outputs,
    )
