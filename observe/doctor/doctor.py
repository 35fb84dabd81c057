"""Checks the configuration, and whether the stream can continue. Returns all findings. Changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass

from config.deployment import Config
from config.subscribe import Subscribe
from observe.doctor.findings import Finding, Level, fail, ok
from observe.doctor.machine import check_machine, gather_machine
from observe.doctor.masters import check_masters, gather_masters
from observe.doctor.sources import SOURCE_ERRORS, StartPosition, check_sources, gather_source, start_positions
from observe.doctor.store import check_store, check_tables, gather_store, gather_tables
from pipeline.checkpoint import resume_offset
from pipeline.checkpoint_fit import require_fitting_checkpoint
from pipeline.commit.load import load_state
from pipeline.source_options import stream_options
from pipeline.state import State
from schemas.errors import AggregatorError, OffsetError
from sources.xlog.format.block import BLOCK_LIMIT
from sources.xlog.options import parse_options
from sources.xlog.stream.instants import log_stream_of
from udfs.before_replace.custom import load_function
from warehouse.delta.newest_epoch import EPOCHS
from warehouse.warehouse import EpochWarehouse


@dataclass(frozen=True)
class Deployment:
    """The sections of a configuration file that are checked."""

    config: Config | None
    """None if the file has only the sections of the daemons."""
    subscribe: Subscribe | None
    max_block_bytes: int = BLOCK_LIMIT
    """The setting `max_block_bytes`: the maximum size of a transaction in a log."""


def findings_of(deployment: Deployment) -> list[Finding]:
    """Return the findings of all checks, in the order in which a run would meet the problems."""
    config, subscribe = deployment.config, deployment.subscribe
    findings = check_machine(gather_machine(config, subscribe))
    if config is not None:
        findings += [
            *_check_policy_functions(config),
            *_check_mask_key(config),
            *check_store(gather_store(config)),
        ]
        if not any(finding.name == "warehouse_unknown" for finding in findings):
            findings += _check_tables_and_sources(config, subscribe)
    if subscribe is not None:
        findings += check_masters(gather_masters(subscribe, deployment.max_block_bytes))
    return findings


def _check_policy_functions(config: Config) -> Iterator[Finding]:
    policies = config.policies
    for space, policy in (("default", policies.default), *((n, policies.of(n)) for n in policies.spaces)):
        if policy.function is None:
            continue
        try:
            load_function(policy.function)
        except Exception as error:  # an import can run any code
            advice = "put its module on PYTHONPATH (on a cluster: --py-files), or correct the name"
            yield fail("custom_function", f"policy {space}", str(error), advice)
        else:
            yield ok("custom_function", f"policy {space}", f"{policy.function} can be imported")


def _check_mask_key(config: Config) -> Iterator[Finding]:
    if not any("hash" in kinds.values() for kinds in config.spaces.masks.values()):
        return
    try:
        config.spaces.mask_key().read()
    except AggregatorError as error:
        yield fail(
            "mask_key_missing",
            "masks",
            str(error),
            "set the variable of mask_key_env, or write mask_key_file",
        )
    else:
        yield ok("mask_key", "masks", "the key can be read")


def _check_checkpoint(warehouse: EpochWarehouse, config: Config, state: State) -> Iterator[Finding]:
    options = {**stream_options(config, state, 1), "on_source_error": "skip"}
    try:
        require_fitting_checkpoint(warehouse, config.checkpoint, log_stream_of(parse_options(options)), state)
    except OffsetError as error:
        advice = str(error.fields["advice"])
        yield fail("checkpoint_of_other_tables", "checkpoint", error.reason, advice)


def _check_tables_and_sources(config: Config, subscribe: Subscribe | None) -> list[Finding]:
    tables = gather_tables(config)
    findings = [*check_tables(tables, config.cluster.allocation)]
    state, positions, unread_sources = State(), list[StartPosition](), dict[str, str]()
    spools = frozenset() if subscribe is None else frozenset(one.spool for one in subscribe.replicasets)
    facts = [gather_source(source, config.max_block_bytes, spools) for source in config.sources]
    try:
        if not tables.unreadable_tables and not tables.differences and tables.newer_release_error is None:
            warehouse = EpochWarehouse(None, config.warehouse, config.database)
            state = load_state(warehouse) if warehouse.exists(EPOCHS) else State()
            start = resume_offset(warehouse, config.checkpoint) if tables.checkpoint_error is None else None
            positions, unread_sources = start_positions(config, state, start or {})
            if tables.checkpoint_error is None:
                findings += _check_checkpoint(warehouse, config, state)
    except SOURCE_ERRORS as error:
        has_failed = any(finding.level is Level.FAIL for finding in findings)
        if not has_failed and all(source.error is None for source in facts):
            findings.append(fail("cannot_continue", "sources", str(error), "see the message"))
    is_snapshot = config.start == "snapshot"
    settled = state.start_vclocks()
    return [
        *findings,
        *check_sources(facts, settled, positions, unread_sources, starts_with_snapshot=is_snapshot),
    ]
