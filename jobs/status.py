"""Print up to which point of the logs the tables are complete, and what needs attention: `aggregator status`.

`observe.overview` reads the tables, `observe.deployment_problems` finds what needs attention.
"""

from dataclasses import replace
from datetime import UTC, datetime

from config.deployment import Config
from jobs.runtime.command_line import DONE, FAILED, print_result
from jobs.runtime.output import say, say_json
from observe.deployment_problems import DeploymentState
from observe.overview import Overview, overview_as_json, overview_of
from observe.write_costs import cost_lines
from schemas.names import replicaset_label
from schemas.problems import problem_text
from sources.xlog.directory.offset import InstantState


def show(config: Config, *, as_json: bool) -> int:
    """Print the state of a deployment, and return 1 if something needs attention."""
    state = DeploymentState(config)
    found = replace(
        overview_of(state.facts, state.now),
        unread_bytes=state.unread_bytes,
        stopped=state.stopped_spools,
        peers=state.standbys,
        costs=state.costs,
        proven_at=_proven_at(state),
        problems=tuple(state.problems()),
    )
    if as_json:
        say_json(overview_as_json(found))
    else:
        _print_overview(found)
    for one in found.problems:
        print_result(problem_text(one), one.shown_advice)
    if not found.problems:
        print_result("nothing needs attention")
    return FAILED if found.problems else DONE


def _proven_at(state: DeploymentState) -> str | None:
    moment = None if state.config.prove is None else state.facts.proven_at
    return None if moment is None else moment.isoformat(timespec="seconds")


def _print_overview(overview: Overview) -> None:
    since = f"{overview.age_seconds:.0f} s ago"
    say(f"{overview.warehouse}: epoch {overview.epoch}, {since}, {overview.spaces} spaces")
    for uuid, one in overview.replicasets.items():
        reached = f"{one['file']} at {one['position']}" if "leader" in one else "no source"
        unread = overview.unread_bytes.get(one.get("leader", ""), 0)
        reached += f", {unread} bytes unread" if unread else ""
        instant = one.get("instant")
        if instant is not None and instant["state"] == InstantState.WAITING:
            reached += f", waits for the others at the instant {instant['label']}"
        vclock = ", ".join(f"{id_}: {lsn}" for id_, lsn in one["vclock"].items())
        say(f"replicaset {replicaset_label(uuid, one.get('leader'))}: {reached}, vclock {{{vclock}}}")
    say(f"{overview.conflicts} decisions between replicasets, {overview.misfits} rows with a value left out")
    for line in () if overview.costs is None else cost_lines(overview.costs):
        say(line)
    if overview.proven_at is not None:
        age = datetime.now(UTC) - datetime.fromisoformat(overview.proven_at)
        hours = f"within the last {age.total_seconds() / 3600:.1f} h"
        say(f"proof: all compared tables were equal to their servers' {hours}, since {overview.proven_at}")
    for spool in overview.stopped:
        since = datetime.fromtimestamp(spool.written, UTC).isoformat(timespec="seconds")
        say(f"spool {spool.directory}: no daemon, last written at {since}, as {spool.instance_uuid}")
    for standby in overview.peers:
        say(f"standby {standby.root}: {standby.state}")
    for text in overview.requests:
        say(f"request {text}")
