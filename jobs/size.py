"""Estimate what a deployment needs, from its own logs and tables.

`observe.sizing` measures and computes, without Spark.
"""

from dataclasses import asdict

from config.deployment import Config
from jobs.runtime.output import say_json, say_lines
from observe.sizing import DAY, Estimate, estimate, measure_source, measure_tables
from schemas.units import size_text
from warehouse.delta.location import location_of


def size(config: Config, *, as_json: bool = False) -> int:
    """Print the estimate; return 1 if a source cannot be read."""
    sources = [measure_source(source, config.max_block_bytes) for source in config.sources]
    found = estimate(config, sources, measure_tables(location_of(config.warehouse, config.database)))
    if as_json:
        say_json(asdict(found))
    else:
        say_lines(text_lines(found))
    return 1 if any(one.error for one in sources) else 0


def text_lines(found: Estimate) -> list[str]:
    """Return the estimate as lines for people."""
    lines = ["source  rows     rows/s   busiest minute, rows/s   logs a day"]
    for one in found.sources:
        if one.error is not None:
            lines.append(f"{one.name}: {one.error}")
            continue
        lines.append(
            f"{one.name:<6} {one.rows:>8,} {one.rows_per_second:>8,.1f} {one.busiest_rows / 60:>24,.1f} "
            f"{size_text(one.bytes_per_day):>12}"
        )
    lines += [
        "",
        f"rows          {found.rows_per_second:,.1f}/s, {found.busiest_rows_per_second:,.1f}/s in the busiest minute",
        f"cores         {found.cores} for the stream (a batch of the busiest minute: {found.batch_seconds:.1f} s)",
        f"memory        {size_text(found.memory_bytes)} for the driver",
        f"_changelog    {size_text(found.changelog_bytes_per_day)} a day, "
        + (
            "kept for ever"
            if found.changelog_bytes is None
            else f"{size_text(found.changelog_bytes)} in its retention"
        ),
    ]
    if found.spool_bytes_per_day:
        lines.append(
            f"spools        {size_text(found.spool_bytes_per_day)} for each day that the job does not run"
        )
    if found.tables is not None and found.table_disk_bytes is not None:
        lines.append(
            f"tables        {found.tables.tables}, {found.tables.table_rows:,} rows, "
            f"{size_text(found.tables.table_bytes)}; with older versions up to {size_text(found.table_disk_bytes)}"
        )
    short = [one.name for one in found.sources if one.error is None and one.seconds < DAY / 24]
    if short:
        lines.append(f"note          logs of less than an hour: {', '.join(short)}; measure a busy day")
    lines += [f"note          {text}" for text in found.advice]
    return lines
