"""Recorded answers of a real Tarantool 2.6.0 to generated requests: the oracle without a server.

`python -m tests.udfs.answers COUNT` records the file again. It has one line per request: UPDATE or UPSERT,
key, encoded fields and their number, operations, base of field numbers, and the tuple or the code of the error.
"""

import gzip
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from tests.udfs.cases import FIELDS
from tests.udfs.generated import Generated, requests, simple_requests
from tests.udfs.oracle import UPDATE, UPSERT, Answer, CrashError, Oracle, make_space, tuple_of

FILE = Path(__file__).with_name("answers_2_6_0.jsonl.gz")
MISFITS = (23, 39)
"""`ER_FIELD_TYPE`, `ER_FIELD_MISSING`: the result does not fit the format, which is checked last."""

TYPES = dict.fromkeys(FIELDS, "any") | {"id": "unsigned", "d": "double"}


@dataclass(frozen=True)
class Answered:
    """A request and the server's answer."""

    kind: int
    key: int
    case: Generated
    answer: Answer

    @property
    def old(self) -> bytes:
        return tuple_of(self.key, self.case.fields, self.case.count)


def answers() -> Iterator[Answered]:
    with gzip.open(FILE, "rt") as lines:
        for line in lines:
            kind, key, fields, count, operations, base, answer = json.loads(line)
            case = Generated(bytes.fromhex(fields), count, bytes.fromhex(operations), base)
            yield Answered(kind, key, case, bytes.fromhex(answer) if isinstance(answer, str) else answer)


def _line(one: Answered) -> str:
    answer = one.answer.hex() if isinstance(one.answer, bytes) else one.answer
    case = one.case
    values = [
        one.kind,
        one.key,
        case.fields.hex(),
        case.count,
        case.operations.hex(),
        case.index_base,
        answer,
    ]
    return json.dumps(values, separators=(",", ":"))


def ask(oracle: Oracle, kind: int, case: Generated) -> Answered | None:
    """Send a request to a server; None if it crashed, or refused the result only for the format."""
    try:
        key, answer = oracle.ask(kind, case.fields, case.count, case.operations, case.index_base)
    except CrashError:
        return None
    return None if answer in MISFITS else Answered(kind, key, case, answer)


def record(count: int) -> int:
    """Write a server's answers to `count` generated requests: a third any, several operations, and simple ones each."""
    found: list[Answered] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Oracle(Path(folder) / "data", make_space(FIELDS, list(TYPES.values()))) as oracle,
    ):

        def put(case: Generated) -> None:
            answered = ask(oracle, random.Random(len(found)).choice([UPDATE, UPSERT]), case)
            if answered is not None:
                found.append(answered)

        quiet = settings(
            max_examples=count // 3,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        quiet(given(case=requests())(put))()
        quiet(given(case=requests(least=2, most=5))(put))()
        quiet(given(case=simple_requests())(put))()
    with FILE.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as out:
        out.write("\n".join(map(_line, found)).encode())
    return len(found)


if __name__ == "__main__":
    sys.stdout.write(f"{record(int(sys.argv[1]))} answers in {FILE}\n")
