"""The doctor's word about versions of Python: tested, allowed but hardly tested, refused."""

import pytest

from observe.doctor.findings import Level
from observe.doctor.machine import MachineFacts, check_machine


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ((3, 10, 9), Level.FAIL),
        ((3, 11, 7), Level.OK),
        ((3, 12, 1), Level.WARN),
        ((3, 13, 0), Level.WARN),
        ((3, 14, 0), Level.FAIL),
    ],
)
def test_a_version_of_python_is_tested_allowed_or_refused(version: tuple[int, ...], level: Level) -> None:
    facts = MachineFacts(version, None, "java", 17, None, "4.2.0", "4.4.0", (), (), False, None, 0, 0)
    (finding,) = (one for one in check_machine(facts) if one.subject == "python")
    assert finding.level is level
