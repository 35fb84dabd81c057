"""The processor time of a case is bounded by its bytes, and the harness sees one that is not."""

import time
from typing import Any

import pytest

from schemas.errors import TupleError
from tests.fuzz import worker
from tests.fuzz.costly import COSTLY
from tests.fuzz.draw import Draw
from tests.fuzz.worker import SLOW_BYTE_SECONDS, SLOW_SECONDS, done_in_time


@pytest.mark.parametrize("name", COSTLY)
def test_inputs_made_to_be_slow_take_time_by_their_bytes(name: str) -> None:
    """A cost by the square of the bytes is far above the bound at this size."""

    def case(draw: Draw) -> None:
        draw.made += COSTLY[name](draw, 200_000)

    assert done_in_time(case, "time") == "accepted"


def slow(draw: Draw) -> None:
    draw.randbytes(1000)
    began, bound = time.process_time(), SLOW_SECONDS + 1500 * SLOW_BYTE_SECONDS
    while time.process_time() - began < bound:
        pass


def refused(_: Draw) -> None:
    raise TupleError("odd")


def test_a_slow_case_is_a_failure(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    targets: dict[str, Any] = {"slow": slow, "refused": refused}
    monkeypatch.setattr(worker, "TARGETS", targets)
    counts = worker.run(["slow", "refused"], 0, 0, 2, 60)
    assert counts == {"slow": {"failed": 1}, "refused": {"refused": 1}}
    assert "TimeoutError" in capfd.readouterr().out


def test_a_case_that_is_slow_once_is_none() -> None:
    """The first one may load kernels."""
    calls: list[int] = []

    def first_slow(draw: Draw) -> None:
        calls.append(1)
        if len(calls) == 1:
            slow(draw)

    assert done_in_time(first_slow, "once") == "accepted"
    assert len(calls) == 2
