"""Say what the next run of a configuration will do: `aggregator plan`.

Reads the tables, the checkpoint and all new rows of the logs; writes nothing and starts no Spark. `pipeline.preview`
makes the plan, `observe.planned_changes` describes it.
"""

from collections.abc import Sequence

from config.deployment import Config
from jobs.runtime.command_line import DONE, FAILED, print_result
from jobs.runtime.output import say, say_json
from observe.facts import DeploymentFacts
from observe.planned_changes import ChangeSign, as_json, format_changes, planned_changes, replicaset_labels
from observe.problems import table_problems
from pipeline.preview import Preview, preview_next_run
from schemas.problems import Problem
from warehouse.delta.location import location_of

EXPLAINED_BY_DOCTOR = {"not_primary", "source_not_followed", "table_changed", "table_lost"}
"""Names of refused changes that `aggregator doctor` explains in more detail."""

COLOUR_BY_SIGN = {
    ChangeSign.NEW: "green",
    ChangeSign.CHANGED: "yellow",
    ChangeSign.GONE: "magenta",
    ChangeSign.REFUSED: "red",
}


def _problems(config: Config, preview: Preview) -> Sequence[Problem]:
    """Return what needs attention in the tables now; none before the first batch, and where a table is lost."""
    if not preview.before.versions:
        return ()
    return list(table_problems(DeploymentFacts(location_of(config.warehouse, config.database))))


def show(config: Config, file: str, *, is_json: bool) -> int:
    """Print what a run will do, and return 1 if something is refused or rows will wait."""
    preview = preview_next_run(config)
    changes = planned_changes(config, preview, _problems(config, preview))
    if is_json:
        say_json(as_json(changes))
    else:
        for sign, line in format_changes(changes, replicaset_labels(config, preview)):
            say(line, fg=COLOUR_BY_SIGN.get(sign))
    count = {sign: sum(one.sign is sign for one in changes) for sign in ChangeSign}
    done = f"{count[ChangeSign.NEW]} new, {count[ChangeSign.CHANGED]} changed, {count[ChangeSign.GONE]} gone"
    if not count[ChangeSign.REFUSED]:
        print_result(done, f"aggregator run --config {file}")
        return DONE
    refused = {one.name for one in changes if one.sign is ChangeSign.REFUSED}
    advice = "each line with ! says what to do; the run continues without it"
    if refused & EXPLAINED_BY_DOCTOR:
        advice = f"aggregator doctor --config {file}"
    print_result(f"{done}, {count[ChangeSign.REFUSED]} refused", advice)
    return FAILED
