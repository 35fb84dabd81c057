"""Each incident on real servers and real jobs: told in time, alike by everyone, and no more after it is mended.

`python -m tests.incidents.matrix` runs it with several servers, and writes the page with what was seen.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.conditions import Job
from tests.incidents.bench import Bench, bench
from tests.incidents.deployment import Told, await_true
from tests.incidents.incidents import INCIDENTS, SLACK_SECONDS, Incident
from tests.incidents.test_daemon import servers

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.soak]

ENDS_SECONDS = 150.0
"""An incident is over when its jobs run again: a start of Spark takes a while, and tables are compared each minute."""


@pytest.fixture(scope="module", params=servers())
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("incidents"), request.param) as made:
        yield made


def keep_record(version: str, name: str, record: dict[str, object] | None) -> None:
    """Write what was seen of an incident to the folder that `tests.incidents.matrix` names; None takes it out."""
    folder = os.environ.get("INCIDENTS")
    if folder:
        file = Path(folder) / f"{version}.json"
        kept = json.loads(file.read_text()) if file.exists() else {}
        kept.pop(name, None)
        file.write_text(json.dumps(kept if record is None else kept | {name: record}))


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda one: one.lasting.__name__)
def test_an_incident_is_told_by_all_in_time_and_is_over(running: Bench, incident: Incident) -> None:
    keep_record(running.version, incident.name, None)
    for job in list(running.jobs.processes):
        if running.jobs.has_ended(job):
            running.jobs.restart(job)
    running.await_well(ENDS_SECONDS)
    await_true(running.jobs.has_written, "a batch since the last start")
    lasting = incident.lasting(running)
    next(lasting)
    try:
        seen = await_told(running, incident)
        told = await_agreement(running, 2 * incident.seconds + SLACK_SECONDS)
        assert incident.conditions <= told.status <= incident.conditions | incident.follow
    except AssertionError as error:
        error.add_note(running.jobs.end_of_logs())
        raise
    finally:
        next(lasting, None)  # mends it
    over = running.await_well(ENDS_SECONDS)
    silent = [str(job) for job in (Job.STREAM, Job.DAEMON) if told.pages[job] is None]
    record = {
        "conditions": sorted(incident.conditions),
        "setting": incident.setting,
        "silent": silent,
        "seen": round(seen, 1),
        "over": round(over, 1),
    }
    keep_record(running.version, incident.name, record)


def await_told(running: Bench, incident: Incident) -> float:
    """Wait until the conditions are told, and no others; return the seconds."""
    found: dict[str, str] = {}

    def is_told() -> bool:
        nonlocal found
        found = running.jobs.problems()
        return incident.conditions <= found.keys() <= incident.conditions | incident.follow

    limit = 2 * incident.seconds + SLACK_SECONDS
    return await_true(is_told, lambda: f"{sorted(incident.conditions)}, but {found}", limit)


def await_agreement(running: Bench, seconds: float) -> Told:
    """Wait until all who tell name the same."""
    told = [running.jobs.told()]

    def is_alike() -> bool:
        told[0] = running.jobs.told()
        return not told[0].disagreement()

    await_true(is_alike, lambda: told[0].disagreement(), seconds)  # noqa: PLW0108 (another one each time)
    return told[0]
