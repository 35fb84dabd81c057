"""Read part of a log again, read a space from a snapshot, heal a divergence, or rebuild a table.

The holder of the writer lock does the work: a running stream does it between two batches, and this command waits for
the answer without Spark; otherwise this command takes the lock, starts Spark and does it itself. The work is in
`pipeline.requests`: `read_again` (logs), `snapshots` (also heal), `rebuild`.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

import yaml
from pydantic import ValidationError
from pyspark.sql import SparkSession
from tqdm import tqdm

from config.deployment import Config
from config.policies import Policies, Policy
from jobs.aggregate import check_custom_functions, configured_standbys, open_batch_writer
from jobs.main import main
from jobs.runtime.output import say
from jobs.runtime.session import log_reading_session
from jobs.runtime.steps import log_step
from observe.log_rows.row_format import tuple_text
from pipeline.commit.load import load_state
from pipeline.requests.rebuild import plan_rebuild
from pipeline.requests.service import Service
from schemas.errors import ConfigurationError, LockError
from schemas.states import RequestKind, RequestState
from warehouse.copies.primary import PrimaryLock, require_primary
from warehouse.system_tables import requests
from warehouse.system_tables.requests import Request
from warehouse.warehouse import Warehouse

POLL_SECONDS = 1.0


def rebuild_policy(config: Config, space: str, policy_option: str | None) -> Policy:
    """Return the policy of the option `--policy`: a name, or YAML keys; by default the space's configured policy."""
    if policy_option is None:
        return config.policies.of(space)
    try:
        document = yaml.safe_load(policy_option)
        keys = document if isinstance(document, dict) else {"policy": document}
        whole = {"default": config.policies.default, "spaces": {space: keys}}
        return Policies.model_validate(whole).of(space)
    except (ValidationError, yaml.YAMLError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ConfigurationError(
            f"{policy_option!r} is not a policy: {reason}",
            advice="give its name, or its keys: --policy '{policy: max, column: balance}'",
        ) from error


def show_rebuild(warehouse: Warehouse, config: Config, space: str, policy: Policy) -> None:
    """Print how many keys of a space a rebuild with a policy would change, and examples of them."""
    rebuild = plan_rebuild(warehouse.open_tables, load_state(warehouse), config, space, policy)
    say(f"{rebuild.changed_keys} keys of {space} would change under {policy.policy}")
    for key, before, after in rebuild.examples:
        say(f"  key {key.hex()}: {_tuple_text(before)} -> {_tuple_text(after)}")


def _tuple_text(tuple_bytes: bytes | None) -> str:
    return "no row" if tuple_bytes is None else tuple_text(tuple_bytes)


class ProgressBar:
    """Shows the progress of a backfill in bytes of the log, as a bar on a terminal and as lines elsewhere."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] = tqdm(
            unit="B", unit_scale=True, dynamic_ncols=True, disable=not sys.stderr.isatty(), desc="backfill"
        )

    def __call__(self, done_bytes: int, total_bytes: int, rows: int) -> None:
        """Show how much of the log has been read so far."""
        self._bar.total = total_bytes
        self._bar.update(done_bytes - self._bar.n)
        if not sys.stderr.isatty():
            say(f"backfill: {done_bytes} of {total_bytes} bytes, {rows} rows", err=True)

    def close(self) -> None:
        """Close the bar and leave it visible."""
        self._bar.close()


def request_and_wait(
    config: Config,
    warehouse: Warehouse,
    kind: str,
    arguments: Mapping[str, Any],
    get_session: Callable[[], SparkSession],
) -> Request:
    """Write a request, and wait for its answer; if no process has the writer lock, take it and do the work here.

    Args:
        get_session: Starts Spark, or returns the session that runs; called only if this process must do the work.
    """
    request = None
    while True:
        try:
            with PrimaryLock(warehouse, "jobs/backfill.py", configured_standbys(config, waits=True)) as lock:
                request = None if request is None else requests.with_newest_state(warehouse, request)
                if request is None or request.state == RequestState.ASKED:
                    spark = get_session()
                    request = request or requests.ask(warehouse, kind, arguments)
                    _serve_requests(spark, config, warehouse.with_session(spark), lock)
                return requests.with_newest_state(warehouse, request)
        except LockError as error:
            if request is None:
                request = requests.ask(warehouse, kind, arguments)
                say(f"asked the writer, request {request.id}: {error.reason}", err=True)
        time.sleep(POLL_SECONDS)
        answered = requests.with_newest_state(warehouse, request)
        if answered.state in (RequestState.DONE, RequestState.FAILED):
            return answered


def _serve_requests(spark: SparkSession, config: Config, warehouse: Warehouse, lock: PrimaryLock) -> None:
    bar = ProgressBar()
    try:
        log_step(f"reading {len(warehouse.tables())} tables")
        writer = open_batch_writer(spark, config, warehouse, lock)
        for request in requests.open_requests(warehouse):
            log_step(f"doing what was asked: {request.kind}")
        Service(spark, warehouse, config, writer, bar, log_step).serve()
    finally:
        bar.close()


@dataclass(frozen=True)
class BackfillOptions:
    """The options of `jobs/backfill.py`: logs are read again, unless `snapshot`, `heal` or `rebuild` is given."""

    source: str | None = None
    """Name of a source; default: all sources."""
    since: datetime | None = None
    until: datetime | None = None
    """Log files that end before `since`, or begin at or after `until`, are not read."""
    snapshot: Sequence[str] = ()
    """Spaces to read again from the newest snapshot."""
    heal: str | None = None
    """The source whose newest snapshot is correct."""
    rebuild: str | None = None
    """The space for whose keys the winning versions are chosen again."""
    policy: str | None = None
    """Policy for a rebuild with `dry_run`, instead of the configured one."""
    dry_run: bool = False
    """Show the changes of a rebuild without writing."""


def requested_work(config: Config, options: BackfillOptions) -> tuple[str, Mapping[str, Any]]:
    """Return the request that options describe: its kind (`RequestKind`) and its arguments."""
    names = [one.name for one in config.sources]
    for source in (options.source, options.heal):
        if source is not None and source not in names:
            raise ConfigurationError(f"{source!r} is not a source; there are {', '.join(names)}")
    if options.heal is not None:
        if options != BackfillOptions(heal=options.heal):
            raise ConfigurationError("--heal takes the newest snapshot of its source, and no other option")
        return RequestKind.HEAL, {"source": options.heal}
    if options.snapshot:
        if options != BackfillOptions(snapshot=options.snapshot, source=options.source):
            raise ConfigurationError("--snapshot takes spaces, and no other option than --source")
        return RequestKind.SNAPSHOT, {"spaces": list(options.snapshot), "source": options.source}
    if options.rebuild is None:
        if options.policy is not None or options.dry_run:
            raise ConfigurationError("--policy and --dry-run belong to --rebuild")
        moments = {"from": options.since, "to": options.until}
        texts = {name: None if one is None else one.isoformat() for name, one in moments.items()}
        return RequestKind.BACKFILL, {"source": options.source, **texts}
    if options.source is not None or options.since is not None or options.until is not None:
        raise ConfigurationError("--rebuild takes the whole space: no --source, --from, --to")
    policy = rebuild_policy(config, options.rebuild, options.policy)
    if not options.dry_run and policy != config.policies.of(options.rebuild):
        raise ConfigurationError(
            "the configuration names another policy for the space, by which the stream would continue",
            space=options.rebuild,
            advice="write the policy into the configuration and leave --policy out, or try it with --dry-run",
        )
    return RequestKind.REBUILD, {"space": options.rebuild, "policy": policy.model_dump(mode="json")}


def backfill(config: Config, options: BackfillOptions) -> int:
    """Request the work that the options describe, wait for it, and return the exit code: 0 if done, 1 if it failed."""
    check_custom_functions(config)
    kind, arguments = requested_work(config, options)
    warehouse = Warehouse(None, config.warehouse, config.database)
    if options.rebuild is not None and options.dry_run:
        warehouse.require_tables()
        policy = rebuild_policy(config, options.rebuild, options.policy)
        show_rebuild(warehouse, config, options.rebuild, policy)
        return 0
    require_primary(warehouse)
    warehouse.create_system_tables()
    session = partial(log_reading_session, config, "backfill")
    request = request_and_wait(config, warehouse, kind, arguments, session)
    say(f"{kind}: {request.message}")
    return 0 if request.state == RequestState.DONE else 1


if __name__ == "__main__":
    sys.exit(main("backfill"))
