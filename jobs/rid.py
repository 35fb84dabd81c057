"""Show, change and compare the RIDs of warehouses, and copy one warehouse onto another.

    python -m jobs.rid show|promote|demote WAREHOUSE        (or --config FILE)
    python -m jobs.rid compare A B [--json]                 A, B: warehouses, or RIDs as text
    python -m jobs.rid sync --from WAREHOUSE --to WAREHOUSE

WAREHOUSE is the configuration's `warehouse`, or the folder of its database. Needs no Spark. Exit codes of compare: 0
same, 3 sync, 4 split brain, 5 unrelated, 2 not a RID. Thin: the rules are `udfs.rid`, the table `tables.rid`, the copy
`tables.copy`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from config.deployment import load
from jobs.cli import run_alone
from jobs.transfer import Transfer
from schemas.errors import ConfigurationError
from tables import switch
from tables.copy.lost import lost_after
from tables.copy.sync import common_epoch, relation, sync
from tables.cut import BEFORE_THE_FIRST, last_epoch
from tables.generations import Held, generations_of
from tables.place import DATABASE, Place, known, place_of
from tables.rid import RidTable
from udfs.rid.comparison import Comparison, Verdict, compare
from udfs.rid.drawing import Generation, draw, lineage
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY, FileLock, Rid, parse_rid

EXIT = {Verdict.SAME: 0, Verdict.SYNC: 3, Verdict.SPLIT_BRAIN: 4, Verdict.UNRELATED: 5}

_LIKE_A_RID = re.compile(r"[^/\\]*(?::[^/\\:]*){5,}\Z")


@dataclass(frozen=True)
class Side:
    """One of two that are compared: a RID, and what its warehouse knows beyond it."""

    name: str
    node: Node
    epoch: int | None = None
    held: tuple[Held, ...] = field(default=())

    def generations(self) -> list[Generation]:
        """Return what is drawn of it, the newest first."""
        if not self.held:
            return lineage(self.node.rid)
        return [one.drawn(is_head=one.ulid == self.node.rid.head) for one in self.held]


def side_of(place: Place) -> Side:
    """Return what a warehouse says of itself now."""
    epoch = last_epoch(place)
    history = RidTable(place).history()
    node = history[-1].at(epoch).node if history else Node()
    return Side(place.root, node, epoch, tuple(generations_of(history, epoch)))


def read_side(text: str, database: str) -> Side:
    """Return the RID that an argument is, or that of the warehouse that it names."""
    if _LIKE_A_RID.fullmatch(text):
        return Side(text, Node(parse_rid(text)))
    place = place_of(text, database) if known(text) else None
    if place is None or not place.is_there():
        raise ConfigurationError(
            f"{text!r} is neither a RID nor a warehouse", advice="give a RID in full, a folder or a URI"
        )
    return side_of(place)


def place_from(options: argparse.Namespace) -> Place:
    """Return the warehouse that a command is about."""
    place = named_place(options)
    if not place.is_there():
        raise ConfigurationError(
            f"there is no {place.root}, nor the folder for it", advice="check the address"
        )
    return place


def named_place(options: argparse.Namespace) -> Place:
    """Return the warehouse that a command line names."""
    if (options.warehouse is None) == (options.config is None):
        raise ConfigurationError(
            "no warehouse is named, or two are", advice="give WAREHOUSE or --config FILE"
        )
    if options.config is not None:
        config = load(options.config)
        return place_of(config.warehouse, config.database)
    return place_of(options.warehouse, options.database)


def show(options: argparse.Namespace) -> None:
    """Print the RID of a warehouse, what it means, and what the warehouse has held."""
    print_side(side_of(place_from(options)), as_json=options.json)


def promote(options: argparse.Namespace) -> None:
    """Make a warehouse the primary."""
    place = place_from(options)
    switch.promote(place, abandon_sync=options.abandon_sync)
    print_side(side_of(place), as_json=options.json)


def demote(options: argparse.Namespace) -> None:
    """Make a warehouse a secondary."""
    place = place_from(options)
    switch.demote(place)
    print_side(side_of(place), as_json=options.json)


def print_side(side: Side, *, as_json: bool) -> None:
    """Print one warehouse's RID."""
    rid, mark = side.node.rid, side.node.next
    if as_json:
        found: dict[str, Any] = {"rid": str(rid), "simplified": rid.simplified, "epoch": side.epoch}
        print(json.dumps({**found, "next": None if mark is None else str(mark)}))
        return
    print(rid)
    print(f"simplified: {rid.simplified}")
    print(f"{side.name}: {describe(rid)}; newest epoch: {side.epoch}")
    if mark is not None:
        print("copies may exist that are not connected: the next data begin a new generation")
    print(draw({"": side.generations()}))


def describe(rid: Rid) -> str:
    """Return a RID's flags in words."""
    if rid == Rid():
        return "no RID yet; the first job that writes it makes it a primary"
    words = ["primary" if rid.primary else "secondary", "consistent" if rid.consistency else "not consistent"]
    words += ["outdated"] * rid.outdated + ["crashed as a primary"] * rid.crashed_primary
    words += [f"a sync of {rid.incoming} has not ended"] * (rid.incoming != EMPTY)
    locks = {
        FileLock.UNKNOWN: "its lock was never taken",
        FileLock.UNLOCKED: "unlocked",
        FileLock.ALLOW_READ: "locked for writing",
        FileLock.LOCKED: "locked by a writer, or left so by a killed one",
    }
    return ", ".join([*words, locks[rid.file_lock]])


def compare_command(options: argparse.Namespace) -> int:
    """Compare two warehouses or RIDs."""
    a, b = (read_side(text, options.database) for text in (options.a, options.b))
    found = compare(a.node.rid, b.node.rid)
    if options.json:
        print(json.dumps(found.as_json()))
        return EXIT[found.verdict]
    for name, one in (("a", a), ("b", b)):
        print(f"{name}: {one.name}" if one.held else f"{name}: {one.node.rid.simplified}")
        print(f"   {describe(one.node.rid)}")
    print(draw({"a": a.generations(), "b": b.generations()}))
    print(sentence(found))
    return EXIT[found.verdict]


def sentence(found: Comparison) -> str:
    """Return a comparison in one sentence."""
    if found.verdict is Verdict.SAME:
        return "same: both hold the same data"
    if found.verdict is Verdict.SYNC:
        return f"sync {found.source} to {found.target}: {found.target} is behind"
    if found.verdict is Verdict.UNRELATED:
        return "unrelated: the two were never copies of each other"
    if found.common is None:
        return "split brain: both were written, and what they had in common is not known"
    younger = f"; the younger primary is {found.younger}" if found.younger else ""
    return f"split brain: both were written after {found.common}{younger}"


def sync_command(options: argparse.Namespace) -> None:
    """Copy a warehouse onto another place, or bring the copy there up to date."""
    source, target = (place_of(text, options.database) for text in (options.source, options.target))
    discard = None if options.discard_target is None else parse_rid(options.discard_target)
    tell_losses(source, target)
    with Transfer() as progress:
        done = sync(source, target, progress.options(discard, check_all=options.verify == "all"))
    print(f"{target.root}: epoch {done.cut.epoch}, {len(done.cut.versions)} tables, {done.rows} rows")
    print(done.node.rid)


def tell_losses(source: Place, target: Place) -> None:
    """Print what a sync would lose, where both sides were written."""
    ours, theirs = RidTable(source), RidTable(target)
    found = relation(ours, theirs)
    if found.verdict is Verdict.SPLIT_BRAIN:
        print(sentence(found).replace(" is a", " is the source").replace(" is b", " is the target"))
        known = common_epoch(theirs, found.common)
        print(lost_after(target, BEFORE_THE_FIRST if known is None else known))


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--verbose", action="store_true", help="show where in the code an error arose")
    shared.add_argument(
        "--database", default=DATABASE, help="the database of a warehouse named by its folder"
    )
    one = argparse.ArgumentParser(add_help=False, parents=[shared])
    one.add_argument("warehouse", nargs="?", metavar="WAREHOUSE", help="a folder or a URI")
    one.add_argument("--config", metavar="FILE", help="the YAML configuration, instead of WAREHOUSE")
    one.add_argument("--json", action="store_true", help="print one JSON object")
    parser = argparse.ArgumentParser(
        prog="jobs.rid", description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, work in (("show", show), ("promote", promote), ("demote", demote)):
        command = commands.add_parser(name, parents=[one], help=work.__doc__, allow_abbrev=False)
        command.set_defaults(work=work)
        if work is promote:
            command.add_argument(
                "--abandon-sync",
                action="store_true",
                help="give up a sync into it that has not ended; what it holds by then is a generation of its own",
            )
    two = commands.add_parser("compare", parents=[shared], help=compare_command.__doc__, allow_abbrev=False)
    two.add_argument("a", metavar="A", help="a warehouse, or a RID")
    two.add_argument("b", metavar="B", help="a warehouse, or a RID")
    two.add_argument("--json", action="store_true", help="print one JSON object")
    two.set_defaults(work=compare_command)
    copy = commands.add_parser("sync", parents=[shared], help=sync_command.__doc__, allow_abbrev=False)
    copy.add_argument("--from", dest="source", required=True, metavar="WAREHOUSE", help="what is copied")
    copy.add_argument("--to", dest="target", required=True, metavar="WAREHOUSE", help="where to")
    copy.add_argument(
        "--discard-target", metavar="RID", help="give up what the target, at this RID, has of its own"
    )
    copy.add_argument(
        "--verify",
        choices=("all", "copied"),
        default="all",
        help="compare the content of all files (default), or of those copied now; of the others the size",
    )
    copy.set_defaults(work=sync_command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_alone(lambda options: options.work(options), arguments(), argv)


if __name__ == "__main__":
    sys.exit(main())
