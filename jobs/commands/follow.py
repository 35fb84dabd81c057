"""Commands that follow replicasets: the stream, the daemon that fills spools, the relay that serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from jobs.runtime.command_line import (
    DONE,
    PENDING,
    command,
    config_option,
    is_verbose,
    json_option,
    load_deployment,
    print_result,
    spark_options,
)

if TYPE_CHECKING:
    from config.deployment import DaemonConfig


@command(
    "run",
    "aggregator run --config deployment.yaml",
    "aggregator run --config deployment.yaml --once --master 'local[4]' --conf spark.driver.memory=4g",
)
@config_option
@click.option("--once", is_flag=True, help="Stop when the logs are read to their current end.")
@spark_options
def run(config: str, once: bool) -> int:
    """Read the logs of all sources into the Delta tables.

    Runs until it is stopped; with --once, until it has read all logs to their current end. Starts Spark in this
    process. To run on a cluster with its settings of Spark, use `spark-submit jobs/aggregate.py`. A new start continues
    where the last run stopped, even if that run was killed.
    """
    from jobs.aggregate import aggregate

    end = aggregate(load_deployment(config), once=once)
    for text in end.pending:
        print_result(text)
    if end.pending:
        print_result(
            f"read up to epoch {end.epoch}; what is named above waits",
            f"aggregator status --config {config}",
        )
        return PENDING
    if end.epoch < 0:
        print_result("no source has a row yet", "aggregator status --config " + config)
    else:
        print_result(f"everything is done up to epoch {end.epoch}", f"aggregator report --config {config}")
    return DONE


def daemon_sections(file: str) -> DaemonConfig:
    """Return the sections `subscribe` and `relay` of a configuration file, checked."""
    from config.deployment import load_daemon_config

    return load_daemon_config(file)


@command("subscribe", "aggregator subscribe --config live.yaml")
@config_option
@click.option(
    "--accept-rewind",
    is_flag=True,
    help="If a master was restored from an older state, so that its lsns went back: begin a new spool, keep the old.",
)
def subscribe(config: str, accept_rewind: bool) -> None:
    """Follow live masters as an anonymous replica, into spools.

    A spool is a directory of standard .snap and .xlog files, which `aggregator run` reads as a source. Reads the
    section `subscribe` of the configuration.
    """
    from jobs.subscribe import subscribe as work

    work(daemon_sections(config), config, accept_rewind=accept_rewind, verbose=is_verbose())


@command("relay", "aggregator relay --config live.yaml", "aggregator relay --config live.yaml --aggregated")
@config_option
@click.option(
    "--aggregated",
    is_flag=True,
    help="Serve the decided tables of the warehouse, as one replicaset, instead of spools.",
)
def relay(config: str, aggregated: bool) -> None:
    """Serve spools over IPROTO.

    Other subscription daemons and anonymous replicas of Tarantool can read them. Reads the section `relay` of the
    configuration.
    """
    from jobs.relay import relay as work

    work(daemon_sections(config), config, aggregated=aggregated, verbose=is_verbose())


@command(
    "unpack",
    "aggregator unpack /backups/production --into /data/backups",
    "aggregator unpack s3://backups/production --into /data/backups --replicaset 11111111-1111-1111-1111-111111111111",
)
@click.argument("storage", metavar="STORAGE")
@click.option(
    "--into", required=True, metavar="FOLDER", type=click.Path(), help="Where directories of logs go."
)
@click.option(
    *("--replicaset", "replicasets"),
    multiple=True,
    metavar="UUID",
    help="Only this replicaset; may be repeated.",
)
@json_option
def unpack(storage: str, into: str, replicasets: Sequence[str], as_json: bool) -> int:
    """Unpack backups of `tt backup` into directories that `run` reads as sources.

    STORAGE is the folder or URI that `tt backup upload` was given, with its prefix. Run it after each backup: what was
    unpacked before is skipped. Exit code 1 if an archive is missing, or a backup between two others.
    """
    from pathlib import Path

    from jobs.unpack import unpack_all

    code = unpack_all(storage, Path(into), replicasets, as_json=as_json)
    if code:
        print_result("the backups have gaps", "docs/corrections.md, Backups, says what a missing link means")
    return code
