"""Parses the options of `aggregator backfill` with the command's own parser."""

from dataclasses import fields

from jobs.backfill import BackfillOptions
from jobs.commands.backfill import backfill


def options(*words: str) -> BackfillOptions:
    """Return the options of `aggregator backfill --config x.yaml WORDS`."""
    given = backfill.make_context("backfill", ["--config", "x.yaml", *words]).params
    return BackfillOptions(**{one.name: given[one.name] for one in fields(BackfillOptions)})
