"""The page of live tests by version: counts, reasons of skipped tests, and what each file of tests shows."""

from pathlib import Path

from tests.live.matrix import Outcome, outcomes, page

MODULE = "tests/live/test_matrix.py"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.live.test_matrix" name="test_a"/>
<testcase classname="tests.live.test_matrix.TestB" name="test_b"><skipped message="no server of 3.9"/></testcase>
<testcase classname="tests.live.test_matrix" name="test_c[2.11]"><failure message="assert 0">trace</failure></testcase>
<testcase classname="tests.live.test_matrix" name="test_d"><error message="fixture">trace</error></testcase>
</testsuite></testsuites>"""


def test_a_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert outcomes(report) == [
        Outcome(MODULE, "test_a", "passed", ""),
        Outcome(MODULE, "test_b", "skipped", "no server of 3.9"),
        Outcome(MODULE, "test_c[2.11]", "failed", "assert 0"),
        Outcome(MODULE, "test_d", "failed", "fixture"),
    ]


def test_the_page_counts_by_version_and_names_what_was_skipped(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    lines = page({"2.6.0": outcomes(report), "3.9.0": [Outcome(MODULE, "test_a", "passed", "")]}).splitlines()
    summary = "The page of live tests by version: counts, reasons of skipped tests, and what each file of tests shows."
    assert f"| `tests/live/test_matrix.py` | {summary} | 1, 1 skipped, 2 failed | 1 |" in lines
    assert "| all | | 1, 1 skipped, 2 failed | 1 |" in lines
    assert "| `tests/live/test_matrix.py` | no server of 3.9 | 1 |  |" in lines
