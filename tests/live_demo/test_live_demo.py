"""The live demonstration: a real run from start to Ctrl-C, and its page by itself."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from live_demo.display import response_to, serve_page
from live_demo.processes import MEMBERS
from tests.live.server import find_servers

ROOT = Path(__file__).resolve().parents[2]
FIRST_ROWS_SECONDS = 60.0
SECONDS = 300.0
KILLED, RUNS_AGAIN = "== master a1 is killed", "== master a1 runs again"


def await_text(said: Path, text: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + SECONDS
    while text not in (found := said.read_text(errors="replace")):
        assert process.poll() is None, found[-3000:]
        assert time.monotonic() < deadline, f"no {text!r} in: {found[-3000:]}"
        time.sleep(0.1)
    return found


def get(address: str) -> tuple[str, str | None]:
    with urllib.request.urlopen(address, timeout=30) as found:
        return found.read().decode(), found.headers.get("Refresh")


@pytest.mark.live
@pytest.mark.soak
def test_a_run_to_its_end(tmp_path: Path) -> None:
    if not find_servers():
        pytest.skip("no tarantool")
    said = tmp_path / "said"
    words = [sys.executable, "-m", "live_demo", "--port", "0", "--every", "1", "--kill-after", "1"]
    with said.open("wb") as file:
        process = subprocess.Popen(
            [*words, "--folder", str(tmp_path / "demo")],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    family: list[psutil.Process] = []
    try:
        text = await_text(said, "first SQL rows", process)
        page = re.search(r"page: (http://\S+?)/ ", text)
        first = re.search(r"first SQL rows ([\d.]+) s", text)
        assert page is not None
        assert first is not None
        assert "SELECT id, owner, balance" in text
        html, refresh = get(f"{page[1]}/")
        assert "accounts" in html
        assert refresh == "1"
        assert "aggregator_" in get(f"{page[1]}/metrics/stream")[0]
        assert "subscribe_lag_rows" in get(f"{page[1]}/metrics/daemon")[0]
        await_text(said, KILLED, process)
        text = await_text(said, RUNS_AGAIN, process)
        assert "== epoch" in text[text.index(KILLED) :], "the stream does not continue"
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= len(MEMBERS) + 2
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert said.read_text().rstrip().endswith("stopped: servers, daemon and stream have ended")
        assert "Traceback" not in said.read_text()
        assert psutil.wait_procs(family, 30)[1] == []
        assert float(first[1]) <= FIRST_ROWS_SECONDS
    finally:
        for one in (*family, *([psutil.Process(process.pid)] if process.poll() is None else [])):
            if one.is_running():
                one.kill()
        process.wait()


def test_the_page_waits_for_the_first_report(tmp_path: Path) -> None:
    status, headers, body = response_to("/", tmp_path / "report.html", {}, 7)
    assert (status, headers["Refresh"]) == (200, "2")
    assert b"first report" in body


def test_the_page_is_the_newest_report_and_refreshes_itself(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("<p>Zähler")
    with serve_page(0, page, {"stream": "http://127.0.0.1:1/metrics"}, 7) as port:
        assert get(f"http://127.0.0.1:{port}/") == ("<p>Zähler", "7")
    assert response_to("/metrics/stream", page, {"stream": "http://127.0.0.1:1/metrics"}, 7)[0] == 503
    assert response_to("/metrics/other", page, {}, 7)[0] == 404


def test_members_of_a_replicaset_share_its_uuid_alone() -> None:
    assert len({member.replicaset_uuid for member in MEMBERS}) == 2
    assert len({member.instance_uuid for member in MEMBERS}) == len(MEMBERS)
    assert [member.other_name for member in MEMBERS] == ["a2", "a1", "b2", "b1"]
