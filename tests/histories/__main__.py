"""Plays many histories and says which ones give other tables: `python -m tests.histories --seeds 0:500`.

Prints how many acts of each kind were done and refused, how far it is, and of each seed that fails its history, made
as small as the given time allows, with all that was done in Lua. `--replay FILE` does such a history again. With
`--distributed` each history is done by the distributed executor as well, which takes some seconds a batch; with
`--at-once 40` a server plays forty histories, each in spaces of its own, and one deployment reads them: in a tenth of
the time.
"""

import argparse
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from config.deployment import Config
from pipeline.batch import MakeDistributed
from tests.conftest import LOCAL_SPARK
from tests.histories.acts import History, history, history_from, merged
from tests.histories.check import CUTS, LACKS, Outcome, examine
from tests.histories.play import UnplayableError
from tests.histories.shrink import shrink
from tests.live.server import find_servers


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for, and return 1 where a history failed."""
    options = _options(arguments)
    logging.getLogger().addHandler(logging.NullHandler())
    with ExitStack() as stack:
        distributed = stack.enter_context(_distributed()) if options.distributed else None
        return _on_all_servers(options, Ways(options.cuts, distributed, options.vary))


@dataclass(frozen=True)
class Ways:
    """How histories are aggregated."""

    cuts: Sequence[str] = CUTS
    distributed: MakeDistributed | None = None
    """Makes the distributed executor, where histories are done by it as well."""
    vary: bool = False
    """Whether a history is cut in one of these ways alone, by its seed."""

    def of(self, history_: History) -> Sequence[str]:
        """Return in which ways to aggregate a history."""
        if history_.count > 1:  # each of its transactions in a batch of its own would take too long
            cuts = [cut for cut in self.cuts if cut != "each"]
            return Random(history_.seed).sample([*cuts, *LACKS], 2) if self.vary else [*cuts, *LACKS]
        return [*([self.cuts[history_.seed % len(self.cuts)]] if self.vary else self.cuts), *LACKS]


def _on_all_servers(options: argparse.Namespace, ways: Ways) -> int:
    failing = 0
    for binary in options.server or find_servers():
        if options.replay is not None:
            failing += not _replay(options.replay.read_text(), binary, ways)
        else:
            failing += _soak(options, binary, ways)
    return int(failing > 0)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.histories", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="FIRST:LAST, the last one not included")
    parser.add_argument("--sides", type=int, default=1, choices=(1, 2), help="how many replicasets")
    parser.add_argument("--length", type=int, default=30, help="about how many steps each server does")
    parser.add_argument(
        "--server", action="append", help="path of a tarantool; by default those of TARANTOOL"
    )
    parser.add_argument("--cuts", default=",".join(CUTS), help="of: " + ", ".join(CUTS))
    parser.add_argument(
        "--shrink", type=float, default=300.0, help="seconds for making a failing history small"
    )
    parser.add_argument("--vary", action="store_true", help="cut each history in one of these ways alone")
    parser.add_argument("--at-once", type=int, default=1, help="how many histories a server plays at once")
    parser.add_argument("--distributed", action="store_true", help="also by the distributed executor")
    parser.add_argument("--replay", type=Path, help="a file with one history in JSON")
    found = parser.parse_args(arguments)
    found.cuts = found.cuts.split(",")
    return found


@contextmanager
def _distributed() -> Iterator[MakeDistributed]:
    """Yield what makes the distributed executor of a batch, in a Spark session of its own."""
    from jobs.runtime.session import spark_session
    from pipeline.executors.distributed import DistributedExecutor

    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", LOCAL_SPARK)
    with tempfile.TemporaryDirectory(prefix="spark-") as folder:
        paths = {"warehouse": f"{folder}/warehouse", "checkpoint": f"{folder}/checkpoint"}
        config = Config.model_validate({**paths, "sources": [{"name": "none", "path": folder}]})
        spark = spark_session(config, "histories")
        yield partial(DistributedExecutor, spark)
        spark.stop()


def _soak(options: argparse.Namespace, binary: str, ways: Ways) -> int:
    first, last = map(int, options.seeds.split(":"))
    answers: Counter[tuple[str, str]] = Counter()
    failing, refused, unplayable, began, done = [], 0, [], time.monotonic(), 0
    histories = (history(seed, options.sides, options.length) for seed in range(first, last))
    groups = list(_groups(histories, options.at_once))
    while groups:
        group = groups.pop(0)
        whole = merged(group) if len(group) > 1 else group[0]
        try:
            outcome = examined(whole, binary, ways)
        except UnplayableError:
            half = len(group) // 2
            if half:
                groups[:0] = [group[:half], group[half:]]
            else:
                unplayable.append(whole.seed)
            continue
        answers += outcome.played.answers
        refused += outcome.is_refused
        done += len(group)
        if outcome.problems:
            failing.append(whole.seed)
            print(report(outcome, binary, ways, options.shrink), flush=True)
        if done % 10 == 0 or len(group) > 1 or not groups:
            passed = f"{done} done ({refused} with refused tables) in {time.monotonic() - began:.0f} s"
            print(f"{binary}: {passed}, failing: {failing}", flush=True)
    print(f"{binary}: contradicted its own files: {unplayable}")
    for kind in sorted({kind for kind, _ in answers}):
        print(f"  {kind:20} {answers[kind, 'done']:7} done {answers[kind, 'refused']:7} refused")
    return len(failing)


def _groups(histories: Iterable[History], size: int) -> Iterator[list[History]]:
    """Yield histories that one server can play at once."""
    alike: dict[tuple[bool, bool], list[History]] = {}
    for one in histories:
        group = alike.setdefault((one.is_sync, one.is_plain), [])
        group.append(one)
        if len(group) == size:
            yield alike.pop((one.is_sync, one.is_plain))
    yield from alike.values()


def examined(history_: History, binary: str | None, ways: Ways = Ways()) -> Outcome:
    """Examine a history in a folder of its own, which is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="history-"))
    try:
        return examine(history_, folder, binary, ways.of(history_), ways.distributed)
    finally:
        shutil.rmtree(folder)


def report(outcome: Outcome, binary: str | None, ways: Ways = Ways(), seconds: float = 120.0) -> str:
    """Return in words what is wrong with a history, made small.

    Args:
        outcome: One with problems.
        binary: The server's program.
        ways: As it was examined.
        seconds: So long it may be made smaller.
    """
    whole = outcome.played.history
    numbers = {int(n) for text in outcome.problems for n in re.findall(r"\b(?:[abc]|X\S*y|tmp)(\d+)\b", text)}
    alone = (whole.only(number) for number in sorted(numbers))
    one = next((one for one in alone if _fails(one, binary, ways)), whole)
    small = shrink(one, lambda one: _fails(one, binary, ways), seconds)
    again = examined(small, binary, ways)
    if not again.problems:  # it does not always fail
        again = outcome
    size = f"{whole.count} at once, {whole.sides} side(s), {whole.size} acts"
    lines = [f"seed {whole.seed}, {size}: {len(outcome.problems)} problems"]
    lines += [f"  {text}" for text in outcome.problems[:5]]
    lines += [
        f"made small, {again.played.history.size} acts:",
        *(f"  {text}" for text in again.problems[:10]),
    ]
    lines += ["which did:", *again.played.said, "and is:", again.played.history.to_json()]
    return "\n".join(lines)


def _fails(history_: History, binary: str | None, ways: Ways) -> bool:
    try:
        return bool(examined(history_, binary, ways).problems)
    except UnplayableError:
        return False


def _replay(text: str, binary: str, ways: Ways) -> bool:
    outcome = examined(history_from(text), binary, ways)
    print("\n".join([*outcome.played.said, *outcome.problems]))
    return not outcome.problems


if __name__ == "__main__":
    sys.exit(main())
