"""Measures how easy the code is to read, and prints the figures: `python -m tests.house`.

All modules count but those of tests, benchmarks and set-up. `tests/test_structure.py` checks some limits.
"""

import ast
import inspect
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("aggregator", "config", "jobs", "observe", "pipeline", "schemas", "sources", "udfs", "warehouse")

PHRASES_TO_AVOID = re.compile(
    r"\b(tells?|told|beside|anew|nobody|whoever|lends?|lent|bears|goes on|go on|is had|has not|as yet|come to be"
    r"|in small|that which|of which|stands? for|takes? back|taken back|at hand)\b",
    re.IGNORECASE,
)
"""Words and phrases that a newcomer reads twice."""


@dataclass(frozen=True)
class Module:
    """One module of the project; `name` is its full name, or that of the package for an `__init__`."""

    name: str
    file: Path

    @cached_property
    def text(self) -> str:
        return self.file.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def is_package(self) -> bool:
        return self.file.name == "__init__.py"

    def names(self) -> set[str]:
        """Return all names that the module defines, also those inside of classes and functions."""
        names: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
        return names

    def imported_names(self) -> Iterator[str]:
        """Yield the full names of imported modules, and of the objects imported from them."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def docstrings(self) -> Iterator[str]:
        """Yield the docstrings of the module, its classes and functions, and the strings under fields and constants."""
        yield from (inspect.cleandoc(text) for text, _ in self._strings())

    @property
    def docstring_lines(self) -> int:
        """The number of lines that `docstrings` take."""
        return sum(count for _, count in self._strings())

    def _strings(self) -> Iterator[tuple[str, int]]:
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
                continue
            if isinstance(node.value.value, str):
                yield node.value.value, (node.end_lineno or node.lineno) - node.lineno + 1


def modules(rooms: tuple[str, ...] = ROOMS) -> dict[str, Module]:
    """Return the modules of some top-level packages, by their full names."""
    command = ["git", "ls-files", *(f"{room}/*.py" for room in rooms)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = {}
    for path in listed:
        name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        found[name] = Module(name, ROOT / path)
    return found


def duplicate_class_names(modules: dict[str, Module]) -> list[str]:
    """Return the names of top-level classes that several modules define."""
    names = Counter(
        node.name for one in modules.values() for node in one.tree.body if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


def imported_once(modules: dict[str, Module]) -> list[str]:
    users: dict[str, set[str]] = {}
    for one in modules.values():
        for name in set(one.imported_names()) & modules.keys() - {one.name}:
            users.setdefault(name, set()).add(one.name)
    return sorted(name for name, by in users.items() if len(by) == 1 and not modules[name].is_package)


Arrows = dict[str, set[str]]
"""Which modules, or which folders, each one imports."""


def arrows_between_files(modules: dict[str, Module]) -> Arrows:
    """Return which modules each module imports, also inside of functions and for type annotations."""
    return {
        name: {
            target
            for node in ast.walk(one.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            for target in [f"{node.module}.{alias.name}"]
            for target in [target if target in modules else str(node.module)]
            if target in modules and target != name
        }
        for name, one in modules.items()
    }


def arrows_between_rooms(files: Arrows, package: str) -> Arrows:
    """Return which rooms of a package each of its rooms imports: its modules and its folders, each taken as one."""
    depth = package.count(".") + 2
    found: Arrows = {}
    for name, targets in files.items():
        if name.startswith(f"{package}."):
            room = ".".join(name.split(".")[:depth])
            rooms = {".".join(target.split(".")[:depth]) for target in targets}
            found.setdefault(room, set()).update(
                other for other in rooms if other.startswith(f"{package}.") and other != room
            )
    return found


def circles(arrows: Arrows) -> set[frozenset[str]]:
    """Return the largest groups in which each one is reached from each other one."""
    reach = {name: set(targets) for name, targets in arrows.items()}
    for middle, beyond in reach.items():
        for targets in reach.values():
            if middle in targets:
                targets.update(beyond)
    return {
        frozenset(other for other in reach[name] if name in reach.get(other, ()))
        for name in reach
        if name in reach[name]
    }


@dataclass(frozen=True)
class BatchModules:
    """The modules whose functions run in a batch, and those of them to which the batch's rows are passed."""

    all: list[str]
    with_rows: list[str]


def modules_of_a_batch(modules: dict[str, Module]) -> BatchModules:
    """Return the modules whose functions run while one local batch of two replicasets is read and committed.

    The batch changes a tuple that both replicasets have. Modules of kernels are not counted, since compiled code runs
    outside of the interpreter.
    """
    from tests.jobs.written import Node, replicasets_of
    from tests.pipeline.deployment import Deployment

    by_file = {str(one.file): one.name for one in modules.values()}
    ran: set[str] = set()
    with_rows: set[str] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file in by_file and frame.f_code.co_name != "<module>":
            ran.add(file)
            if any(map(_has_rows, frame.f_locals.values())):
                with_rows.add(file)

    with tempfile.TemporaryDirectory() as folder:
        nodes = [Node(Path(folder), name).define(600, "accounts") for name in ("a1", "b1")]
        for node in nodes:
            node.put(600, 1, "ann", 5, 1).close()
        sources = {node.path.name: node.path for node in nodes}
        deployment = Deployment(Path(folder), sources, replicasets_of(*sources))
        with deployment.writer() as (_, writer):
            deployment.batch(writer)
            for node in nodes:
                node.update(600, 1, ["+", 2, 5], at=2.0).close()
            threading.setprofile(note)
            sys.setprofile(note)
            try:
                assert deployment.batch(writer), "the batch has no rows"
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
    return BatchModules(*(sorted(by_file[file] for file in files) for files in (ran, with_rows)))


ROWS = (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray, pa.Buffer, memoryview, bytearray)
SHORTEST_BYTES = 16
NESTED = 2
"""How deep rows are searched for in the arguments of a function."""


def _has_rows(value: object, depth: int = 0) -> bool:
    """Return whether an argument is, or holds, Arrow data or an array of bytes that is not empty."""
    if isinstance(value, ROWS):
        return len(value) > 0
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.size > SHORTEST_BYTES
    if depth == NESTED or isinstance(value, type):
        return False
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        parts = [getattr(value, name, None) for name in getattr(value, "__dataclass_fields__", ())]
    return any(_has_rows(part, depth + 1) for part in parts)


def main() -> None:
    """Print the figures."""
    found = modules()
    plain = [one for one in found.values() if not one.is_package]
    lines = {one.name: one.text.count("\n") for one in found.values()}
    classes = sum(isinstance(node, ast.ClassDef) for one in plain for node in one.tree.body)
    duplicates = duplicate_class_names(found)
    docstrings = [text for one in found.values() for text in one.docstrings()]
    odd = [text for text in docstrings if PHRASES_TO_AVOID.search(text)]
    print(f"modules                                  {len(plain)}")
    print(f"lines                                    {sum(lines.values())}")
    for room in ROOMS:
        print(f"  {room:<38} {sum(n for name, n in lines.items() if name.split('.')[0] == room)}")
    print(f"lines of docstrings                      {sum(one.docstring_lines for one in found.values())}")
    tests = modules(("tests",))
    print(
        f"lines of tests                           {sum(one.text.count(chr(10)) for one in tests.values())}"
    )
    files = arrows_between_files(found)
    packages = [name for name, one in found.items() if one.is_package]
    rooms = [circle for name in packages for circle in circles(arrows_between_rooms(files, name))]
    print(f"circles of files                         {len(circles(files))}")
    print(f"circles of folders                       {len(rooms)}")
    for package in ("jobs", "pipeline", "pipeline.plan", "warehouse"):
        count = sum(map(len, arrows_between_rooms(files, package).values()))
        print(f"  arrows between rooms of {package:<16} {count}")
    print(f"longest module                           {max(lines.values())}")
    print(f"classes                                  {classes}")
    share = 100 * len(duplicates) / classes
    print(f"  whose name another module has too      {len(duplicates)} ({share:.1f} %)")
    print(f"docstrings                               {len(docstrings)}")
    print(f"  with a phrase to avoid                 {len(odd)} ({100 * len(odd) / len(docstrings):.1f} %)")
    print(f"modules that one other imports           {len(imported_once(found))}")
    run = modules_of_a_batch(found)
    print(f"modules that run in a batch              {len(run.all)}")
    print(f"  to which its rows are passed           {len(run.with_rows)}")
    print(f"  {', '.join(run.with_rows)}")
    print(f"class names of several modules: {', '.join(duplicates)}")


if __name__ == "__main__":
    main()
