"""The configuration of a deployment: one YAML file, checked whole before anything starts.

`load` returns a frozen `Config`, or raises one error that names every mistake by its line, its path in the
YAML, the value that stands there and what is allowed. `conf/demo.yaml` is a complete example with a word on
each key.

Never here: secrets (a Hadoop path finds its credentials where Hadoop looks for them), settings of Spark
itself (`conf/spark-defaults.conf`, or `--conf` of spark-submit), and command-line options (each job's own).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

from config.errors import mistakes_of
from config.instants import Instants
from config.lineage import LineageConfig
from config.live import Live
from config.metrics import MetricsConfig
from config.policies import Policies, Policy, uuid_or_none
from config.relay import RelayConfig
from config.retention import Retention
from config.spaces import Spaces
from config.subscribe import Subscribe
from config.validation import Validation
from config.values import (
    ByteCount,
    Decimal,
    Interval,
    Label,
    Location,
    Name,
    Part,
    Uuid,
    later,
    mistake,
)
from config.yaml_document import read_document, refuse
from sources.xlog.format.block import BLOCK_LIMIT

_Model = TypeVar("_Model", bound=BaseModel)


class SourceConfig(Part):
    """One directory of `.snap` and `.xlog` files: an instance's own, a copy of it, or a spool.

    Parameters
    ----------
    name : str
        Unique; shown in messages and in the tables.
    path : str
        A directory, or any URI that `pyarrow.fs` opens. A relative one starts at the YAML file's folder.
    origins : tuple of str
        Uuids of the instances whose rows are taken; empty takes all.
    replicaset : str or None
        Uuid of the replicaset, where neither the logs nor a snapshot have it.

    """

    name: Label
    path: Location
    origins: tuple[Uuid, ...] = ()
    replicaset: Uuid | None = None


class GlobalIds(Part):
    """How global ids are given.

    Parameters
    ----------
    allocation : str
        `counter` counts up over all replicasets. `preserve`: an instance keeps its replica id, where that is taken the
        lowest free number above it. A warehouse keeps the one that it was begun with.

    """

    allocation: Literal["counter", "preserve"] = "counter"


class Types(Part):
    """What the field types of Tarantool that fit no Spark type exactly become.

    A value that the chosen type does not hold leaves its column null (`spaces.misfits`).

    Parameters
    ----------
    unsigned : str
        `precise`: decimal(20,0). `long`: bigint, which does not hold a greater value.
    integer : str
        `long`: bigint, which does not hold a value beyond it. `precise`: decimal(20,0).
    decimal : str
        `string`: every digit as Tarantool prints it. `decimal(38,s)`: a number, which does not hold more digits.

    """

    unsigned: Literal["precise", "long"] = "precise"
    integer: Literal["long", "precise"] = "long"
    decimal: Decimal = "string"


class Config(Part):
    """One deployment. `warehouse`, `checkpoint` and `sources` have no default.

    Parameters
    ----------
    warehouse, checkpoint : str
        Any Hadoop path; a relative one starts at the YAML file's folder. Tables lie in
        `<warehouse>/<database>.db/<table>`.
    database : str
        Name of the database in SQL.
    trigger : str
        Time between two micro-batches, as Spark writes it: `5 seconds`.
    sources : tuple of SourceConfig
        What is followed, as one stream: sources may come and go under the same checkpoint.
    cluster, spaces, policies, types
        See these classes.
    start : str
        Where a source begins whose tables are empty: at its newest `snapshot`, or with its first `logs`.
    feed : str
        `leader`: of several sources of one replicaset one is read, the others stand by. `own_peer` is the daemon's
        choice (`subscribe.feed`): its spool is one source, in which nothing comes twice.
    on_gap : str
        `hold`: rows beyond a missing lsn wait until it is filled. `skip`: the loss is recorded and accepted.
    on_source_error : str
        `fail`: a source that cannot be read stops the job. `skip`: it is reported, the others continue.
    max_bytes_per_trigger : int
        About how much of the logs one micro-batch reads, in bytes (`256 MiB` in the YAML).
    local_bytes : int
        A batch whose decoded rows have no more bytes is done in the driver, without a Spark job.
    max_block_bytes : int
        A transaction that takes more bytes, in the file or decompressed, is refused as damage; the daemons write none.
    max_tuple_bytes : int
        A tuple that UPDATEs or UPSERTs make longer is refused (`_quarantine`), until a row has the key's whole tuple.
    instants : Instants or None
        Points of a sharded cluster at which all replicasets are cut together; None: batches end anywhere.
    reader : str or None
        Under which name the job acknowledges to spools what it has passed (`pipeline.acknowledge`); None makes one
        of the database and the warehouse.
    retention : Retention
        How long the aggregator's own tables keep what is over (`jobs.maintain`).
    metrics : MetricsConfig or None
        What the stream reports about itself; None: only its progress.
    lineage : LineageConfig or None
        OpenLineage events of the stream's batches; None: none.
    validation : Validation
        Of `jobs.validate`.
    subscribe : Subscribe or None
        Of the daemon `jobs.subscribe`; the aggregating job itself does not use it.
    relay : RelayConfig or None
        Of the daemon `jobs.relay`.

    """

    warehouse: Location
    checkpoint: Location
    sources: tuple[SourceConfig, ...]
    database: Name = "aggregator"
    trigger: Interval = "5 seconds"
    cluster: GlobalIds = GlobalIds()
    start: Literal["snapshot", "logs"] = "snapshot"
    feed: Annotated[Literal["leader"], later("own_peer", why="is for live masters: see subscribe.feed")] = (
        "leader"
    )
    on_gap: Literal["hold", "skip"] = "hold"
    on_source_error: Literal["fail", "skip"] = "fail"
    spaces: Spaces = Spaces()
    policies: Policies = Policies()
    types: Types = Types()
    max_bytes_per_trigger: ByteCount = 256 * 1024 * 1024
    local_bytes: ByteCount = 256 * 1024 * 1024
    max_block_bytes: ByteCount = BLOCK_LIMIT
    max_tuple_bytes: ByteCount = 64 * 1024 * 1024
    instants: Instants | None = None
    reader: Label | None = None
    retention: Retention = Retention()
    metrics: MetricsConfig | None = None
    lineage: LineageConfig | None = None
    validation: Validation = Validation()
    subscribe: Subscribe | None = None
    relay: RelayConfig | None = None

    @model_validator(mode="after")
    def _apart(self) -> Config:
        if not self.sources:
            raise mistake("names no source; allowed: a list of one or more", "sources")
        names: dict[str, int] = {}
        paths: dict[str, int] = {}
        for number, source in enumerate(self.sources):
            if source.name in names:
                raise mistake(f"{source.name!r} is the name of another source", "sources", number, "name")
            if source.path in paths:
                raise mistake(f"{source.path!r} is read by another source", "sources", number, "path")
            names[source.name] = paths[source.path] = number
        for name in ("warehouse", "checkpoint"):
            if getattr(self, name).startswith("s3://"):
                raise mistake("Spark opens no s3://; allowed: s3a://", name)
        if self.checkpoint == self.warehouse:
            raise mistake("must not be the warehouse's folder", "checkpoint")
        self._check_priority(self.policies.default, "default")
        for name, policy in self.policies.spaces.items():
            self._check_priority(policy, "spaces", name)
        return self

    def _check_priority(self, policy: Policy, *where: str) -> None:
        for number, name in enumerate(policy.priority):
            if uuid_or_none(name) is None and name not in self._replicasets():
                what = f"{name!r} is neither a uuid nor a source whose replicaset is configured"
                raise mistake(what, "policies", *where, "priority", number)

    def _replicasets(self) -> dict[str, str]:
        return {source.name: source.replicaset for source in self.sources if source.replicaset is not None}

    def priority(self, policy: Policy) -> tuple[str, ...]:
        """Return the uuids of the replicasets that a policy puts first, the foremost one first."""
        known = self._replicasets()
        return tuple(uuid_or_none(name) or known[name] for name in policy.priority)


def load(path: str | Path) -> Config:
    """Read and check a configuration.

    Parameters
    ----------
    path : str or Path
        A YAML file.

    Raises
    ------
    ConfigurationError
        If it cannot be read or has mistakes: all of them in one message; of one alone the fields `file`,
        `line` and `path` (`policies.spaces.accounts.policy`) give its place.

    """
    return _load(Path(path), Config, ())


def load_live(path: str | Path) -> Live:
    """Read and check the sections of the daemons; of the other keys only that some job knows them."""
    return _load(Path(path), Live, Config.model_fields)


def _load(path: Path, model: type[_Model], others: Iterable[str]) -> _Model:
    document = read_document(path)
    context = {"folder": path.resolve().parent}
    mistakes = list(document.repeated)
    data = document.data
    if isinstance(data, dict):
        own = model.model_fields
        data = {key: value for key, value in data.items() if key in own or key not in others}
    try:
        config = model.model_validate(data, context=context)
    except ValidationError as error:
        mistakes += mistakes_of(error, model)
    if mistakes:
        raise refuse(document, mistakes)
    return config
