"""The configuration of a deployment: one YAML file, which is checked completely before anything starts.

`load` returns a frozen `Config`, or raises one error that names every mistake by its line, its path in the
YAML, its value and what is allowed. `conf/demo.yaml` is a complete example that describes each key.

The configuration never holds secrets (Hadoop finds the credentials of a path itself), settings of Spark
(`conf/spark-defaults.conf`, or `--conf` of spark-submit) or command-line options (each job has its own).

Small sections are defined here; larger ones have a module each.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from config.lookups import DEFAULT_VECTORS_ABOVE, KeyCache, VectorMode
from config.policies import Policies, Policy, uuid_or_none
from config.relay import RelayConfig
from config.retention import Retention
from config.spaces import Spaces
from config.subscribe import Subscribe, seconds
from config.values import (
    ByteCount,
    ConfigSection,
    DecimalType,
    HostPort,
    Interval,
    Label,
    Location,
    ServerAddress,
    SqlName,
    Url,
    Uuid,
    mistake,
    unsupported_values,
)
from config.yaml_document import configuration_error, mistakes_of, read_document
from schemas.names import unusable_in_path
from sources.xlog.format.block import BLOCK_LIMIT

ExecutorChoice = Literal["auto", "driver", "tasks"]
"""Where batches are processed: see `Config.executor`."""


class DaemonConfig(ConfigSection):
    """The part of the configuration that the daemons read: in the deployment's file, or in a file of its own.

    Keys of the aggregating job may be in the same file; the daemons do not check them.
    """

    subscribe: Subscribe | None = None
    """Settings of the daemon `jobs.subscribe`."""
    relay: RelayConfig | None = None
    """Settings of the daemon `jobs.relay`."""
    max_block_bytes: ByteCount = BLOCK_LIMIT
    """The largest transaction that the aggregating job reads. The daemons neither write nor acknowledge a larger one.
    """


class LineageConfig(ConfigSection):
    """OpenLineage events of each batch: START, then COMPLETE or FAIL."""

    namespace: Label = "tarantool"
    """Namespace and name of the job in the events."""
    job: Label = "aggregate"
    """Namespace and name of the job in the events."""
    file: Location | None = None
    """A file to append one event per line."""
    url: Url | None = None
    """A service that accepts events, such as Marquez. Exactly one of `file` and `url` is given."""
    key_env: Label | None = None
    """The environment variable with the API key of the service at `url`."""

    @model_validator(mode="after")
    def _check_receiver(self) -> LineageConfig:
        if (self.file is None) == (self.url is None):
            raise mistake("names no receiver, or two; allowed: one of file, url")
        if self.key_env is not None and self.url is None:
            raise mistake("is the key of a service, but there is no url", "key_env")
        return self


RECOVERY_POINT_SPACE = "_recovery_point"
"""Name of Tarantool's own marker space, since 3.8; the place of its labels is fixed."""


class MarkerRows(ConfigSection):
    """A space whose rows mark instants."""

    space: str = Field(min_length=1)
    """Name of the space in every replicaset."""
    label: str | Annotated[int, Field(ge=1)] | None = None
    """The field with the label, by its name or its 1-based number. None only for `_recovery_point`, Tarantool's own
    marker space, where the labels have a fixed place."""

    @model_validator(mode="after")
    def _check_label(self) -> MarkerRows:
        if (self.label is None) != (self.space == RECOVERY_POINT_SPACE):
            wanted = "a field's name, or its number from 1 on"
            what = (
                f"needs a label; allowed: {wanted}"
                if self.label is None
                else "has fixed labels; allowed: none"
            )
            raise mistake(f"{self.space} {what}", "label")
        return self


class Instants(ConfigSection):
    """Instants of a sharded cluster: points with the same label in the logs of all replicasets."""

    markers: tuple[MarkerRows, ...] = (MarkerRows(space=RECOVERY_POINT_SPACE),)
    """The spaces whose rows mark instants."""
    wait: Interval = "10 minutes"
    """How long a replicaset at a marked point waits for the others. After that it continues with a warning, and the
    point is not an instant."""

    @model_validator(mode="after")
    def _check_distinct(self) -> Instants:
        if not self.markers:
            raise mistake("names no marker; allowed: a list of one or more", "markers")
        names = [one.space for one in self.markers]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise mistake(f"{name} is named twice", "markers", number, "space")
        return self


class Standby(ConfigSection):
    """Copies of the warehouse that get each epoch before the next one is committed (docs/rid.md)."""

    peers: tuple[Location, ...] = ()
    """Warehouses, each written like the key `warehouse`. Each folder must exist; it may be empty until the job copies
    the warehouse into it."""
    retry: Interval = "1 minute"
    """How long the job waits before it tries again to write to a copy that has failed."""

    @model_validator(mode="after")
    def _check_distinct(self) -> Standby:
        for number, copy in enumerate(self.peers):
            if copy in self.peers[:number]:
                raise mistake(f"{copy!r} is named twice", "peers", number)
        return self


class Validation(ConfigSection):
    """How the tables are validated."""

    expectations: Location | None = None
    """The folder with the user's suites; None: `expectations` next to the YAML file, if it exists."""
    docs: Location | None = None
    """The local folder for Data Docs; None: none are written."""
    ahead: Interval | None = "1 hour"
    """How far a server's clock may be ahead of the validating machine's; None: times are not checked."""

    def clock_tolerance(self) -> timedelta | None:
        """Return `ahead`: how far a row's timestamp may be in the future; None if this is not checked."""
        return None if self.ahead is None else timedelta(seconds=seconds(self.ahead))


class Proof(ConfigSection):
    """The rolling proof: the running job compares all tables with live servers, range by range, between batches."""

    every: Interval = "24 hours"
    """Within this time each tuple is compared once. The condition `proof_stale` is true where this does not succeed."""
    share_of_time: float = Field(default=0.02, gt=0, le=0.5)
    """Largest share of a server's time that the comparison takes: of the time in which its requests wait for answers.
    """
    peers: tuple[ServerAddress, ...] = ()
    """One server of each replicaset, `user@host:port`; a replica will do. Empty: the peers of the section `subscribe`.
    """
    password_env: Label | None = None
    """The environment variable with the password of the users of `peers`."""


class MetricsConfig(ConfigSection):
    """Where the stream's metrics are served and written."""

    status: HostPort | None = None
    """Address on which `/metrics` (Prometheus) and `/status` (JSON) are served."""
    log: Literal["stderr"] | Location | None = None
    """A file, or `stderr`, to which JSON objects are appended, one per line."""
    stale: Interval | None = "10 minutes"
    """A source that the stream reads is stale after this time without a new row; None: never."""


_Model = TypeVar("_Model", bound=BaseModel)


class SourceConfig(ConfigSection):
    """One directory of `.snap` and `.xlog` files: an instance's own directory, a copy of it, or a spool."""

    name: Label
    """Unique name, shown in messages and in the tables."""
    path: Location
    """A directory, or a URI that `pyarrow.fs` opens. A relative path starts at the YAML file's folder."""
    origins: tuple[Uuid, ...] = ()
    """A filter: uuids of the instances whose rows are read; empty reads the rows of all."""
    replicaset: Uuid | None = None
    """Uuid of the replicaset, if neither the logs nor a snapshot have it."""


class GlobalIds(ConfigSection):
    """How global ids are assigned."""

    allocation: Literal["counter", "preserve"] = "counter"
    """`counter` counts up over all replicasets. `preserve`: an instance keeps its replica id or, if that is taken, gets
    the lowest free number above it. It cannot change after a warehouse is created."""


class Types(ConfigSection):
    """The column types for Tarantool's field types without an exact counterpart in Spark.

    A value that the chosen type cannot hold leaves its column null (`spaces.misfits`).
    """

    unsigned: Literal["precise", "long"] = "precise"
    """`precise`: decimal(20,0). `long`: bigint, which cannot hold values above 2^63 - 1."""
    integer: Literal["long", "precise"] = "long"
    """`long`: bigint, which cannot hold values above 2^63 - 1. `precise`: decimal(20,0)."""
    decimal: DecimalType = "decimal(38,18)"
    """`decimal(38,s)`: a number with s digits after the point, further ones are rounded half-even and `_inexact` names
    the column. `string`: all digits, as Tarantool 3 prints them."""
    nested: Literal["json", "variant"] = "json"
    """`json`: text that each reader can open. `variant`: Spark's binary encoding, with types. Of the field types any,
    map, array and scalar, and of `_extra`."""
    exact: bool = False
    """A value that its column would only have rounded or shortened leaves it null, too."""


class Config(ConfigSection):
    """One deployment. `warehouse`, `checkpoint` and `sources` have no default."""

    warehouse: Location
    """Where the tables are, as `<warehouse>/<database>.db/<table>`: a folder, or any Hadoop path. A relative one starts
    at the YAML file's folder."""
    checkpoint: Location
    """Where Spark stores how far the stream has read: a path as that of the warehouse. If it is lost, the stream begins
    from the tables."""
    sources: tuple[SourceConfig, ...]
    """The sources of the stream; they may be added and removed under the same checkpoint."""
    database: SqlName = "aggregator"
    """Name of the database in SQL."""
    trigger: Interval = "5 seconds"
    """Time between two micro-batches, in Spark's notation: `5 seconds`."""
    cluster: GlobalIds = GlobalIds()
    """How global ids are assigned."""
    start: Literal["snapshot", "logs"] = "snapshot"
    """Where a source begins if the tables have no rows of its replicaset yet: at its newest `snapshot`, or with its
    first `logs`."""
    feed: Annotated[
        Literal["leader"], unsupported_values("own_peer", why="is for live masters: see subscribe.feed")
    ] = "leader"
    """The only value is `leader`: one of several sources of a replicaset is read, the others are on standby. To read
    each instance's rows from its own server, use the daemon with `subscribe.feed: own_peer`: it merges them into one
    spool, which is one source here."""
    on_gap: Literal["hold", "skip"] = "hold"
    """`hold`: rows after a missing lsn wait until it is filled. `skip`: the loss is recorded and accepted."""
    on_source_error: Literal["fail", "skip"] = "fail"
    """`fail`: a source that cannot be read stops the job. `skip`: it is reported and the others continue."""
    spaces: Spaces = Spaces()
    """Which spaces become tables."""
    policies: Policies = Policies()
    """How conflicts between replicasets are resolved."""
    types: Types = Types()
    """How field types without an exact counterpart in Spark are stored."""
    max_bytes_per_trigger: ByteCount = 256 * 1024 * 1024
    """Approximate number of bytes of logs that one micro-batch reads."""
    executor: ExecutorChoice = "auto"
    """Where a batch is processed. `auto`: in the driver up to `local_bytes`, on a cluster up to 4 MiB of logs, and a
    larger one in Spark's tasks. `driver`: in the driver, up to `local_bytes`. `tasks`: always in tasks. Tasks read the
    rows; on one machine the driver itself reads the first batch and those of more than 1 MiB of logs, since this is
    faster there, and tasks count its rows."""
    local_bytes: ByteCount = 256 * 1024 * 1024
    """A batch is processed in the driver only if its decoded rows have at most this many bytes."""
    deletion_vectors: VectorMode = "auto"
    """`auto`: a table of a space gets deletion vectors once a batch would write more than `deletion_vectors_above` of
    its old rows again. `always`: every table of a space has them. `never`: files with changed rows are written again.
    `spaces.deletion_vectors` sets it for single spaces."""
    deletion_vectors_above: ByteCount = DEFAULT_VECTORS_ABOVE
    """The size of the files, in bytes, that a batch writes again in a table at most under `auto` (`64 MiB` in the
    YAML)."""
    cache: KeyCache = KeyCache()
    """The key copies, by which batches find rows."""
    max_block_bytes: ByteCount = BLOCK_LIMIT
    """A larger transaction, in the file or decompressed, is treated as damage; the daemons never write one."""
    max_tuple_bytes: ByteCount = 64 * 1024 * 1024
    """The longest tuple that is computed from UPDATEs or UPSERTs. A key whose tuple gets longer is in `_quarantine`
    until the log has a row with its complete tuple."""
    instants: Instants | None = None
    """Instants at which a batch ends in all replicasets of a sharded cluster; None: batches end anywhere."""
    reader: Label | None = None
    """The name under which the job acknowledges to spools what it has read (`pipeline.acknowledge`); None derives one
    from the database and the warehouse."""
    retention: Retention = Retention()
    """How long the aggregator's own tables keep old rows (`jobs.maintain`)."""
    standby: Standby = Standby()
    """Copies of the warehouse that get each epoch before the job commits the next one."""
    metrics: MetricsConfig | None = None
    """Where the stream's metrics are served and written; None: only its progress is logged."""
    lineage: LineageConfig | None = None
    """OpenLineage events of the stream's batches; None: no events."""
    validation: Validation = Validation()
    """Settings of `jobs.validate`."""
    prove: Proof | None = None
    """The rolling proof of `aggregator run`; None: tables are compared only by `aggregator prove`."""
    subscribe: Subscribe | None = None
    """Settings of the daemon `jobs.subscribe`; the aggregating job itself does not use them."""
    relay: RelayConfig | None = None
    """Settings of the daemon `jobs.relay`."""

    @model_validator(mode="after")
    def _check_sections(self) -> Config:
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
            path: str = getattr(self, name)
            if path.startswith("s3://"):
                raise mistake("Spark opens no s3://; allowed: s3a://", name)
            if (part := unusable_in_path(path)) is not None:
                raise mistake(f"no table can be in {path!r}: {part!r} is not allowed in its path", name)
        if self.checkpoint == self.warehouse:
            raise mistake("must not be the warehouse's folder", "checkpoint")
        if self.warehouse in self.standby.peers:
            raise mistake(
                "is the warehouse itself", "standby", "peers", self.standby.peers.index(self.warehouse)
            )
        if self.prove is not None and not self.prove.peers and self.subscribe is None:
            raise mistake("names no server, and there is no section subscribe", "prove", "peers")
        self._check_priority(self.policies.default, "default")
        for name, policy in self.policies.spaces.items():
            self._check_priority(policy, "spaces", name)
        return self

    def _check_priority(self, policy: Policy, *value_path: str) -> None:
        for number, name in enumerate(policy.priority):
            if uuid_or_none(name) is None and name not in self._replicaset_by_source():
                what = f"{name!r} is neither a uuid nor a source whose replicaset is configured"
                raise mistake(what, "policies", *value_path, "priority", number)

    def _replicaset_by_source(self) -> dict[str, str]:
        return {source.name: source.replicaset for source in self.sources if source.replicaset is not None}

    def vector_mode(self, space_name: str) -> VectorMode:
        """Return when the table of a space gets deletion vectors."""
        return self.spaces.vector_mode(space_name) or self.deletion_vectors

    def preferred_replicasets(self, policy: Policy) -> tuple[str, ...]:
        """Return the uuids of the replicasets in a policy's `priority`, the most preferred first."""
        known = self._replicaset_by_source()
        return tuple(uuid_or_none(name) or known[name] for name in policy.priority)


def load(path: str | Path) -> Config:
    """Read and check a configuration.

    Args:
        path: A YAML file.

    Raises:
        ConfigurationError: The file cannot be read or has mistakes. One message names all of them; the location of a
            single mistake is in the fields `file`, `line` and `path` (`policies.spaces.accounts.policy`).
    """
    return _load(Path(path), Config, ())


def load_daemon_config(path: str | Path) -> DaemonConfig:
    """Read and check the sections of the daemons; of the other keys only the names are checked, by `Config`."""
    return _load(Path(path), DaemonConfig, Config.model_fields)


def _load(path: Path, model: type[_Model], ignored_keys: Iterable[str]) -> _Model:
    """Read a file and check it by a model, without those of `ignored_keys` that the model lacks."""
    document = read_document(path)
    context = {"folder": path.resolve().parent}
    mistakes = list(document.repeated_keys)
    data = document.data
    if isinstance(data, dict):
        own = model.model_fields
        data = {key: value for key, value in data.items() if key in own or key not in ignored_keys}
    try:
        config = model.model_validate(data, context=context)
    except ValidationError as error:
        mistakes += mistakes_of(error, model)
    if mistakes:
        raise configuration_error(document, mistakes)
    return config
