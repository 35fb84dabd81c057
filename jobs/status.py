"""Print up to which point of the logs the tables are complete, and which problems there are: `aggregator status`.

`observe.overview` reads the tables.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

from config.deployment import Config
from jobs.runtime.command_line import DONE, FAILED, print_result
from observe.overview import Overview, overview_as_json, overview_of, standbys_overview
from schemas.names import replicaset_label
from sources.spool.state import stopped_spools
from sources.xlog.directory.offset import InstantState
from warehouse.delta.location import location_of
from warehouse.lock.lock import local_folder


def show(config: Config, *, as_json: bool) -> int:
    """Print the state of a deployment, and return 1 if something needs attention."""
    folders = [local_folder(source.path) for source in config.sources]
    stopped = stopped_spools(folder for folder in folders if folder is not None)
    found = overview_of(location_of(config.warehouse, config.database), datetime.now(UTC))
    found = replace(found, stopped_spools=tuple(stopped), standbys=standbys_overview(config))
    if as_json:
        print(json.dumps(overview_as_json(found), default=str))
    else:
        _print_overview(found)
    for text, advice in found.findings:
        print_result(text, advice)
    if not found.findings:
        print_result("nothing needs attention")
    return FAILED if found.findings else DONE


def _print_overview(overview: Overview) -> None:
    since = f"{overview.age_seconds:.0f} s ago"
    print(f"{overview.warehouse}: epoch {overview.epoch}, {since}, {overview.space_table_count} spaces")
    for uuid, one in overview.replicasets.items():
        reached = f"{one['file']} at {one['position']}" if "leader" in one else "no source"
        instant = one.get("instant")
        if instant is not None and instant["state"] == InstantState.WAITING:
            reached += f", waits for the others at the instant {instant['label']}"
        vclock = ", ".join(f"{id_}: {lsn}" for id_, lsn in one["vclock"].items())
        print(f"replicaset {replicaset_label(uuid, one.get('leader'))}: {reached}, vclock {{{vclock}}}")
    for text in overview.refused_spaces:
        print(f"refused: {text}")
    print(
        f"{overview.conflict_rows} decisions between replicasets, {overview.misfit_rows} rows with a value left out"
    )
    for spool in overview.stopped_spools:
        since = datetime.fromtimestamp(spool.written, UTC).isoformat(timespec="seconds")
        print(f"spool {spool.directory}: no daemon, last written at {since}, as {spool.instance_uuid}")
    for standby in overview.standbys:
        print(f"standby {standby.root}: {standby.state}")
    for text in overview.open_requests:
        print(f"request {text}")
