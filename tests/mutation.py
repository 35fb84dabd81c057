"""Shows how many seeded faults the tests find: `python -m tests.mutation COMMAND`.

    draw     draws modules and faults in lines that their tests run, and writes them to tests/mutants.json
    run      makes one fault after another in a copy of the project, runs its tests, and writes which test found it
    table    compares two results of `run`, as a table in Markdown

The list of faults is kept, so that two states of the tests can be compared on the same ones: `run` before a change of
the tests, and after it. A fault is found by the text of its line, so it survives changes elsewhere in the module; one
whose line is gone is reported as such. Modules with kernels have no faults here: each would have to be compiled.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

import pytest
from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipeline", "sources", "udfs", "warehouse")
LIST = ROOT / "tests" / "mutants.json"
GONE = "gone"
"""The result of a fault whose line is not in its module any more."""

MODULES = 24
"""Number of modules whose tests run to draw faults."""

MAX_TEST_FILES = 3
"""Maximum number of test files that run for a fault: that of its module, then others that run its line."""

QUICK = "not spark and not live and not soak"
"""Which tests run: those without Spark and servers."""

HANG_SECONDS = 300
"""A fault whose tests take longer makes them hang, which finds it."""

OPERATORS: Mapping[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
"""The text of an operator, and that of the one that replaces it."""


@dataclass(frozen=True)
class Fault:
    module: str
    """The file, relative to the project."""
    line: int
    """Number of the line when the fault was drawn; the nearest line with the same text is changed."""
    text: str
    changed: str
    """The line before and after the change."""
    kind: str
    """What is changed: `operator`, `constant` or `condition`."""
    tests: Sequence[str] = field(default=(), compare=False)
    """Test files that run the line, in the order in which they are run."""

    @property
    def name(self) -> str:
        return f"{self.module}: {self.text.strip()} → {self.changed.strip()}"


class FaultFinder(ast.NodeVisitor):
    """Collects the possible faults of a module.

    Args:
        module: Its file, relative to the project.
        source: Its text.
        lines: Numbers of the lines that tests run; others get no faults.
    """

    def __init__(self, module: str, source: str, lines: set[int]) -> None:
        self.faults: list[Fault] = []
        self._module = module
        self._lines = [line.encode() for line in source.split("\n")]
        self._covered = lines
        self.visit(ast.parse(source))

    def _add(self, kind: str, line: int, start: int, end: int, new: str) -> None:
        """Add the fault that replaces the bytes from `start` to `end` of a line."""
        if line not in self._covered:
            return
        old = self._lines[line - 1]
        changed = old[:start] + new.encode() + old[end:]
        self.faults.append(Fault(self._module, line, old.decode(), changed.decode(), kind))

    def _replace_operator(self, operator: ast.AST, left: ast.expr, right: ast.expr) -> None:
        texts = OPERATORS.get(type(operator))
        if texts is None or left.end_lineno != right.lineno or left.end_col_offset is None:
            return
        between = self._lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
        if between.count(texts[0]) == 1:
            at = left.end_col_offset + between.index(texts[0])
            self._add("operator", right.lineno, at, at + len(texts[0]), texts[1])

    def visit_Compare(self, node: ast.Compare) -> None:
        """Replace each comparison by its neighbour or its opposite."""
        for left, operator, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            self._replace_operator(operator, left, right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._replace_operator(node.op, left, right)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Replace arithmetic, but not that of texts, which any test would find."""
        if not any(isinstance(one, ast.JoinedStr) or _is_text(one) for one in (node.left, node.right)):
            self._replace_operator(node.op, node.left, node.right)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add one to a number, and turn a truth value over."""
        if isinstance(node.value, bool):
            new = str(not node.value)
        elif isinstance(node.value, int) and node.lineno == node.end_lineno:
            new = str(node.value + 1)
        else:
            return
        self._add("constant", node.lineno, node.col_offset, node.end_col_offset or 0, new)

    def _negate(self, test: ast.expr) -> None:
        if test.lineno == test.end_lineno and test.end_col_offset is not None:
            condition = self._lines[test.lineno - 1][test.col_offset : test.end_col_offset].decode()
            self._add("condition", test.lineno, test.col_offset, test.end_col_offset, f"(not ({condition}))")
        self.visit(test)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        for one in (*node.body, *node.orelse):
            self.visit(one)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave the annotation alone."""
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        """Leave annotations alone."""
        for default in (*node.defaults, *(one for one in node.kw_defaults if one is not None)):
            self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Leave decorators and annotations alone."""
        self.visit(node.args)
        for one in node.body:
            self.visit(one)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def namesakes() -> Mapping[str, str]:
    """Return the test files that are named as a module, by the module's file, both relative to the project."""
    found = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            module = file.relative_to(ROOT)
            test = ROOT / "tests" / module.parent / f"test_{module.name}"
            if test.is_file() and "kernels" not in module.parts:
                found[module.as_posix()] = test.relative_to(ROOT).as_posix()
    return found


def covered_tests(tests: Sequence[str]) -> Mapping[str, Mapping[int, set[str]]]:
    """Run test files without Spark and servers; return, by module and line, which of them run it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "coverage.ini"
        settings.write_text(
            f"[run]\nsource = {','.join(PACKAGES)}\nomit = */kernels/*\ndynamic_context = test_function\n"
            f"data_file = {folder}/data\n"
        )
        command = ["coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        subprocess.run([sys.executable, "-m", *command, "-m", QUICK, *tests], cwd=ROOT, check=False)
        data = CoverageData(f"{folder}/data")
        data.read()
        return {
            Path(file).relative_to(ROOT).as_posix(): {
                line: found
                for line, contexts in data.contexts_by_lineno(file).items()
                # Lines that run only when a module is imported have no test.
                if (found := {name for context in contexts if (name := test_file_of(context)) is not None})
            }
            for file in data.measured_files()
        }


def test_file_of(name: str) -> str | None:
    """Return the file of a test from a dotted name that begins with its module's; None if it is no test's."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        file = "/".join(parts[:end]) + ".py"
        if parts[end - 1].startswith("test_") and (ROOT / file).is_file():
            return file
    return None


def draw(seed: int, count: int) -> list[Fault]:
    """Return faults in lines that tests run: of each package the same number, drawn by a seed."""
    generator = random.Random(seed)
    test_by_module = namesakes()
    modules = {
        package: [module for module in test_by_module if module.startswith(f"{package}/")]
        for package in PACKAGES
    }
    drawn = {
        package: generator.sample(found, min(len(found), MODULES // len(PACKAGES)))
        for package, found in modules.items()
    }
    covered = covered_tests([test_by_module[module] for found in drawn.values() for module in found])
    chosen: list[Fault] = []
    for found in drawn.values():
        possible: list[Fault] = []
        for module in sorted(found):
            tests_by_line = covered.get(module, {})
            source = (ROOT / module).read_text(encoding="utf-8")
            for fault in FaultFinder(module, source, set(tests_by_line)).faults:
                namesake = test_by_module[module]
                others = sorted(tests_by_line[fault.line] - {namesake})
                tests = [namesake, *others][:MAX_TEST_FILES]
                possible.append(Fault(**{**asdict(fault), "tests": tests}))
        chosen += generator.sample(possible, min(count // len(PACKAGES), len(possible)))
    return chosen


def apply(fault: Fault, root: Path) -> str | None:
    """Make a fault in the copy of the project, and return the module's text before; None if its line is gone."""
    file = root / fault.module
    if not file.is_file():
        return None
    source = file.read_text(encoding="utf-8")
    lines = source.split("\n")
    places = [index for index, line in enumerate(lines) if line == fault.text]
    if not places:
        return None
    lines[min(places, key=lambda index: abs(index + 1 - fault.line))] = fault.changed
    file.write_text("\n".join(lines), encoding="utf-8")
    return source


PRELOADED = (
    "deltalake",
    "msgpack",
    "numba",
    "numpy",
    "pyarrow.compute",
    "pyarrow.fs",
    "pydantic",
)
"""Packages that are imported once, before a process is forked for each run of tests; none with a plugin of pytest."""


def finder_of(fault: Fault, root: Path, first: str | None = None) -> str | None:
    """Run the tests of a fault that is in the copy, and return the first test that fails; None if all pass.

    Args:
        first: A test that found the fault before; it runs first.
    """
    tests = [one for one in fault.tests if (root / one).is_file()]
    for chosen in ([first] if first else [], tests):
        if not chosen:
            continue
        code, lines = run_forked(chosen, root)
        if code is None:
            return "hangs"
        # 1: a test failed; 2 to 4: they could not run; a signal. 5, or 4 for a test: there is no such test any more.
        if code not in (0, 5) and (code != 4 or chosen is tests):
            failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
            return failed[0].split(" ")[1] if failed else f"exit code {code}"
    return None


def run_forked(tests: Sequence[str], root: Path) -> tuple[int | None, list[str]]:
    """Run tests of the copy in a forked process; return its exit code, None if it hangs, and what it printed."""
    output = root.parent / "output"
    child = os.fork()
    if not child:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(root)
        os.environ["PYTHONPATH"] = str(root)
        sys.path[:] = [str(root), *(path for path in sys.path if path not in ("", str(ROOT)))]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        arguments = ["-x", "-q", "-m", QUICK, "-p", "no:cacheprovider", "--rootdir", str(root), *tests]
        code = 3
        try:
            code = int(pytest.main(arguments))
        finally:
            os._exit(code)
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), output.read_text(errors="replace").splitlines()
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, []


def run_all(faults: Sequence[Fault], out: Path, before: Mapping[str, str | None]) -> None:
    """Run the tests of each fault, and add a line to a file for each; a run that was stopped continues there."""
    done = set(read_results(out))
    for name in PRELOADED:
        import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        root = Path(folder) / "project"
        ignored = shutil.ignore_patterns(".git", ".state", ".venv*", ".hypothesis", ".mypy_cache", "*.pyc")
        shutil.copytree(ROOT, root, ignore=ignored, symlinks=True)
        (root / ".venv").symlink_to(ROOT / ".venv")
        code, lines = run_forked(faults[0].tests, root)
        if code:
            sys.exit("\n".join([*lines, "the tests fail without a fault"]))
        for fault in faults:
            if fault.name in done:
                continue
            source, began = apply(fault, root), time.monotonic()
            finder = GONE if source is None else finder_of(fault, root, _test_or_none(before.get(fault.name)))
            if source is not None:
                (root / fault.module).write_text(source, encoding="utf-8")
            with out.open("a", encoding="utf-8") as file:
                seconds = round(time.monotonic() - began, 1)
                file.write(json.dumps({"fault": fault.name, "finder": finder, "seconds": seconds}) + "\n")


def _test_or_none(finder: str | None) -> str | None:
    return (
        finder if finder is not None and "::" in finder and (ROOT / finder.split("::")[0]).is_file() else None
    )


def read_results(file: Path) -> dict[str, str | None]:
    """Return the test that found each fault, by the fault's name; None where none did, `GONE` without its line."""
    if not file.is_file():
        return {}
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {row["fault"]: row["finder"] for row in rows}


def table(
    faults: Sequence[Fault], before: Mapping[str, str | None], after: Mapping[str, str | None]
) -> Iterator[str]:
    """Yield the lines of a table: faults by package, and how many are found before and after."""
    yield "| package | faults | found before | found after |"
    yield "|---|---|---|---|"
    for package in PACKAGES:
        names = [one.name for one in faults if one.module.startswith(f"{package}/")]
        found = [sum(results.get(name) not in (None, GONE) for name in names) for results in (before, after)]
        yield f"| {package} | {len(names)} | {found[0]} | {found[1]} |"
    for fault in faults:
        if before.get(fault.name) is not None and after.get(fault.name) is None:
            yield f"lost: {fault.name}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Seed faults, and see which of them the tests find.")
    commands = parser.add_subparsers(dest="command", required=True)
    drawn = commands.add_parser("draw")
    drawn.add_argument("--seed", type=int, default=42)
    drawn.add_argument("--count", type=int, default=60)
    ran = commands.add_parser("run")
    ran.add_argument("--out", type=Path, required=True)
    ran.add_argument("--before", type=Path, help="results of an earlier run, whose finders are tried first")
    compared = commands.add_parser("table")
    compared.add_argument("before", type=Path)
    compared.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "draw":
        rows = [asdict(fault) for fault in draw(given.seed, given.count)]
        LIST.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    faults = [Fault(**row) for row in json.loads(LIST.read_text(encoding="utf-8"))]
    if given.command == "run":
        run_all(faults, given.out, read_results(given.before) if given.before else {})
    else:
        print("\n".join(table(faults, read_results(given.before), read_results(given.after))))


if __name__ == "__main__":
    main()
