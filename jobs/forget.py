"""Forget keys: remove all that is stored of them, then search all files for what is left.

The steps follow the data: the tables in one epoch, their earlier versions (`--vacuum`), key copies, spools. Each may be
repeated, so a command that was stopped is run again. The keys themselves are stored nowhere.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path, PurePosixPath

import pyarrow as pa

from config.deployment import Config
from jobs.aggregate import configured_standbys
from jobs.runtime.output import say
from jobs.runtime.steps import log_step
from observe.forgetting.keys import ForgottenKeys
from observe.forgetting.marks import Marks
from observe.forgetting.search import KeyFinding, Search, shown_path
from observe.key_changes.reader import KeyChangesReader
from pipeline.lookup.copy_folder import SUFFIX as COPY_SUFFIX
from pipeline.requests.beside import beside_location, discard
from pipeline.retention.forgotten import mark_rows, remove_marked, tables_with_keys
from pipeline.start import open_writer
from pipeline.state import ReplicasetState, State
from schemas.states import RequestKind
from sources.spool import rewrite
from sources.spool.acks import is_spool
from sources.spool.state import REWOUND_PREFIX
from sources.xlog.format.meta import REPLICASET_KEY, Meta
from sources.xlog.format.vclock import is_at_most, without_local
from sources.xlog.reader.file_buffer import open_fs
from sources.xlog.reader.plain_rows import PlainRow, read_meta
from udfs.keys.key_patterns import Value
from warehouse.copies.primary import PrimaryLock
from warehouse.delta.earlier_versions import files_of_earlier_versions, remove_earlier_versions
from warehouse.delta.log_files import LOG_FOLDER
from warehouse.system_tables import requests
from warehouse.system_tables.maintenance import DEFAULT_DAYS, FILES_PROPERTY, LOG_PROPERTY, retention_days
from warehouse.warehouse import Warehouse

Step = Callable[[str], None]

FOUND = {"rows": "has rows of the keys", "bytes": "has the bytes of a key"}


@dataclass(frozen=True)
class ForgetOptions:
    """The arguments and options of `aggregator forget`."""

    space: str
    keys: Sequence[Sequence[Value]]
    vacuum: bool = False
    """Whether all earlier versions of the tables are removed."""
    spools: Sequence[Path] = ()
    """Spools besides those among the sources."""
    only_search: bool = False


def forget(config: Config, options: ForgetOptions, step: Step = log_step) -> int:
    """Forget keys, print what was removed and what is left, and return the exit code.

    Args:
        step: Called before each step with what it does; an exception in it ends the command there.
    """
    warehouse = Warehouse(None, config.warehouse, config.database)
    warehouse.require_tables()
    keys = ForgottenKeys(KeyChangesReader(warehouse.location).definitions(options.space), options.keys)
    keys.check(options.space)
    work = _Forgetting(config, warehouse, keys, options, step)
    if not options.only_search:
        with PrimaryLock(warehouse, "jobs/forget.py", configured_standbys(config, waits=True)) as lock:
            state = open_writer(config, warehouse, lock).state
            work.clean_tables(state)
        if options.vacuum:
            # When the first lock ended, connected standbys had copied the epoch, by entries of the log that go now.
            with PrimaryLock(warehouse, "jobs/forget.py", configured_standbys(config, waits=True)):
                work.remove_earlier_versions()
        work.clean_copies()
        work.clean_spools(state)
    return work.report()


@dataclass
class _Forgetting:
    config: Config
    warehouse: Warehouse
    keys: ForgottenKeys
    options: ForgetOptions
    step: Step
    spools: dict[str | Path, Path] = field(init=False)

    def __post_init__(self) -> None:
        local = {one.name: Path(one.path) for one in self.config.sources}
        self.spools = {name: path for name, path in local.items() if is_spool(path)}
        self.spools |= {path: path for path in self.options.spools}

    def tables(self) -> list[str]:
        return list(tables_with_keys(self.warehouse.open_tables, self.keys.space.tables))

    def clean_tables(self, state: State) -> None:
        self.step("looking for rows of the keys")
        tables = self.warehouse.open_tables
        marked = mark_rows(tables, self.keys.space.tables, Marks(self.keys).mark)
        counts = marked.counts()
        remove_marked(
            tables, state, marked, lambda table: self.step(f"{counts[table]} rows of {table} are removed")
        )
        for table, count in counts.items():
            say(f"{table}: {count} rows were removed")
        for table in self.keys.space.tables:
            if discard(self.warehouse.location, table):
                say(f"{table}: what was built beside was removed")
        if self.options.vacuum:
            arguments = {"space": self.options.space, "tables": self.tables()}
            requests.record(self.warehouse, RequestKind.FORGET, arguments, "earlier versions are removed")

    def remove_earlier_versions(self) -> None:
        for table in self.tables():
            self.step(f"removing earlier versions of {table}")
            count = remove_earlier_versions(self.warehouse.location, table)
            self.warehouse.open_tables.forget(table)
            if count:
                say(f"{table}: {count} files of earlier versions and of their log were removed")

    def clean_copies(self) -> None:
        self.step("removing key copies")
        folder = Path(self.config.cache.folder(self.config.checkpoint))
        for pattern in (f"*{COPY_SUFFIX}", ".*.part"):
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)

    def clean_spools(self, state: State) -> None:
        for name, spool in self.spools.items():
            with rewrite.locked(spool):
                shutil.rmtree(spool / rewrite.FORGETTING_FOLDER, ignore_errors=True)
                for path in rewrite.files_of(spool):
                    self.step(f"reading {path}")
                    is_gone = _read_rows_of_keys(self.keys, state, path, str(name))
                    if is_gone is None:
                        continue
                    if count := rewrite.rewrite(spool, path, is_gone, self.keys.may_be_in):
                        say(f"{path}: {count} rows were removed")

    def report(self) -> int:
        self.step("searching all files")
        search, left, expiring = Search(self.keys), 0, 0
        for address in self._folders():
            for finding in self._findings(search, address):
                if self._expires(finding):
                    expiring += 1
                else:
                    left += 1
                    say(f"{finding.path}: {_text_of(finding)}")
        say(f"{search.files} files were searched, {search.size} bytes; {left} of them hold the keys")
        if expiring:
            say(f"{expiring} more are files of earlier versions, which {self._expiry()}")
        for text in self._outside():
            say(text)
        return 1 if left else 0

    def _folders(self) -> Iterator[str]:
        location = self.warehouse.location
        yield from (location.root, beside_location(location).root)
        yield from (self.config.checkpoint, self.config.cache.folder(self.config.checkpoint))
        yield from map(str, self.spools.values())

    def _findings(self, search: Search, address: str) -> Iterator[KeyFinding]:
        try:
            yield from search.folder(*open_fs(address))
        except (OSError, ValueError, pa.ArrowException) as error:
            yield KeyFinding(address, f"not searched: {error}")

    @cached_property
    def _earlier_files(self) -> set[str]:
        location = self.warehouse.location
        return {
            shown_path(location.fs, path)
            for table in self.tables()
            for path in files_of_earlier_versions(location, table)
        }

    def _expires(self, finding: KeyFinding) -> bool:
        in_log = PurePosixPath(finding.path).parent.name == LOG_FOLDER
        is_earlier = finding.what in FOUND and (in_log or finding.path in self._earlier_files)
        return is_earlier and not self.options.vacuum

    def _expiry(self) -> str:
        days = {
            name: max(self._days(table, name) for table in self.tables())
            for name in (FILES_PROPERTY, LOG_PROPERTY)
        }
        files, log = (datetime.now(UTC) + timedelta(days=days[one]) for one in (FILES_PROPERTY, LOG_PROPERTY))
        return (
            f"`aggregator maintain` removes from {files:%Y-%m-%d} on, and entries of the log from {log:%Y-%m-%d} on; "
            f"or remove them now: --vacuum"
        )

    def _days(self, table: str, name: str) -> float:
        return retention_days(name, self.warehouse.property(table, name)) or DEFAULT_DAYS[name]

    def _outside(self) -> Iterator[str]:
        """Yield texts about what is not searched, or cannot be changed."""
        for source in self.config.sources:
            if source.name not in self.spools:
                yield f"source {source.name}: {source.path} is not a spool: its logs and snapshots stay as they are"
        if not self.warehouse.location.is_local:
            yield "not searched: versions of objects that the store itself keeps"
        for standby in self.config.standby.peers:
            yield f"the copy {standby} keeps its earlier versions until it is maintained"
        yield "not searched: key copies on other machines, backups, exports, pages of reports and of validation"


def _text_of(finding: KeyFinding) -> str:
    return FOUND.get(finding.what, finding.what)


def _read_rows_of_keys(
    keys: ForgottenKeys, state: State, path: Path, source: str
) -> Callable[[Meta, PlainRow], bool] | None:
    """Return which rows of a spool's file are of the keys and were read; None if nothing of the spool was read."""
    with path.open("rb") as stream:
        uuid = read_meta(stream, path.name).other.get(REPLICASET_KEY)
    one = state.replicasets.get(uuid or "")
    is_set_aside = path.parent.name.startswith(REWOUND_PREFIX)
    marks, ids = Marks(keys), {space_id for _, space_id in keys.space.replicaset_and_space_ids}
    if one is None:
        return None
    translation = one.id_translations.get(source, {})

    def is_gone(meta: Meta, row: PlainRow) -> bool:
        if row.space_id not in ids or not (is_set_aside or _is_read(one, translation, meta, row)):
            return False
        return marks.is_read(row)

    return is_gone


def _is_read(replicaset: ReplicasetState, translation: Mapping[int, int], meta: Meta, row: PlainRow) -> bool:
    """Return whether a row was read, or for a row of a snapshot, whether the tables have reached the snapshot."""
    if meta.filetype != "XLOG":
        vclock = {translation.get(one, one): lsn for one, lsn in without_local(meta.vclock).items()}
        return is_at_most(vclock, replicaset.settled)
    number = row.replica_id or 0
    return (row.lsn or 0) <= replicaset.read.get(translation.get(number, number), 0)
