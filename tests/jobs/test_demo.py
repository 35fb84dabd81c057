"""The demonstration's command: aggregate, validate and report in one session."""

from pathlib import Path

import pytest

from jobs.demo import demo
from tests.jobs.deployment import Deployment
from tests.truth import own

pytestmark = [
    pytest.mark.spark,
    # Great Expectations calls what its own dependencies have deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.usefixtures("spark")
def test_it_validates_what_it_aggregated_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = own()
    sources = {node: recording.directory(node) for node in ("a1", "b1")}
    deployment = Deployment(tmp_path, sources, spaces={"include": ["accounts"]})
    page = tmp_path / "report.html"
    assert demo(deployment.config(), str(tmp_path / "demo.yaml"), str(page)) == 0
    output = capsys.readouterr().out
    assert "expectations hold" in output
    assert "aggregated in" in output
    assert deployment.rows("accounts") != []
    assert "accounts" in page.read_text()
