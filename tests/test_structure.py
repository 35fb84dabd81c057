"""The house rules that a reader relies on: which way imports go, how long a module is, what a file never holds."""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import house

ROOT = Path(__file__).resolve().parent.parent

MAY_IMPORT = {
    "schemas": set[str](),
    "udfs": {"schemas"},
    "sources": {"udfs", "schemas"},
    "config": {"sources", "schemas"},
    "warehouse": {"udfs", "schemas"},
    "pipeline": {"config", "warehouse", "udfs", "sources", "schemas"},
    "observe": {"pipeline", "config", "warehouse", "udfs", "sources", "schemas"},
    "jobs": {"observe", "pipeline", "config", "warehouse", "udfs", "sources", "schemas"},
    "aggregator": {"jobs"},
    "live_demo": {"jobs", "observe", "config", "warehouse", "schemas"},
    "benchmarks": {
        "jobs",
        "observe",
        "pipeline",
        "config",
        "warehouse",
        "udfs",
        "sources",
        "schemas",
        "tests",
    },
    "tests": {
        *("jobs", "observe", "pipeline", "config", "warehouse", "udfs", "sources", "schemas"),
        *("benchmarks", "live_demo"),
    },
    "setup": {"config", "jobs", "observe", "pipeline", "schemas", "sources", "warehouse"},
    "airflow_dags": set[str](),
    "conf": {"sources"},
}
"""Room to the other rooms that it may import from; itself it always may."""

LONGEST_MODULE = 500
LONGEST_TEST = 600
LONGEST_FUNCTION = 35


BINARY = {".snap", ".xlog", ".vylog", ".run", ".index", ".gz", ".png", ".pyc"}
NOT_OURS = {".git", ".venv", ".venv-airflow", ".state", "build", "dist"}


def tracked() -> list[Path]:
    """Return the project's text files: those that git knows, or in a copy without git all that lie there."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        files = [file for file in ROOT.rglob("*") if not NOT_OURS & set(file.relative_to(ROOT).parts)]
    return [file for file in files if file.is_file() and file.suffix not in BINARY]


MODULES = [file for file in tracked() if file.suffix == ".py"]


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0]


@cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a module, which several tests look at."""
    return ast.parse(source)


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of what a module imports anywhere, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where something comes from"
            yield node.module or ""


def rooms_of(source: str) -> set[str]:
    return {module.partition(".")[0] for module in imported(parsed(source))} & MAY_IMPORT.keys()


def test_imports_go_one_way() -> None:
    assert {room_of(file) for file in MODULES} <= MAY_IMPORT.keys(), "see docs/architecture.md"
    wrong = {name(file): forbidden_rooms(room_of(file), file.read_text()) for file in MODULES}
    assert {file: rooms for file, rooms in wrong.items() if rooms} == {}


def forbidden_rooms(room: str, source: str) -> set[str]:
    return rooms_of(source) - {room} - MAY_IMPORT[room]


def test_a_forbidden_import_would_be_found() -> None:
    assert forbidden_rooms("udfs", "from pipeline.batch import BatchWriter") == {"pipeline"}
    assert forbidden_rooms("pipeline", "from udfs.keys import keys") == set()


def test_one_door_leads_to_the_rows_of_data_files() -> None:
    product = ("warehouse", "pipeline", "relay", "observe", "jobs", "live_demo")
    beside = [file for file in MODULES if room_of(file) in product and "delta" not in file.parts]
    found = {name(file): parquet_reads(file.read_text()) for file in beside}
    assert {file: what for file, what in found.items() if what} == {}, "see warehouse/delta/table_files.py"


def parquet_reads(source: str) -> set[str]:
    """Return the names by which a module reads data files, or asks the log for them, past `table_files`."""
    named = {node.attr for node in ast.walk(parsed(source)) if isinstance(node, ast.Attribute)}
    readers = {"ParquetFile", "ParquetDataset", "read_table", "read_metadata", "read_parquet", "scan_parquet"}
    return named & {
        *readers,
        "get_add_actions",
        "file_uris",
        "to_pyarrow_table",
        "to_pyarrow_dataset",
    }


def test_a_read_past_the_door_would_be_found() -> None:
    assert parquet_reads("rows = pq.ParquetFile(path).read()") == {"ParquetFile"}
    assert parquet_reads("rows = read_file(location, table, file)") == set()


STAGES = (
    "state",
    "plan",
    "changelog",
    "lookup",
    "reduce",
    "resolve",
    "encode",
    "write",
    "compaction",
    "commit",
)
"""Rooms of `pipeline` in the order of the data: none imports a later one."""


@cache
def arrows() -> house.Arrows:
    return house.arrows_between_files(house.modules())


def test_no_circle_of_files() -> None:
    assert house.circles(arrows()) == set()


def test_no_circle_of_rooms() -> None:
    packages = [name for name, one in house.modules().items() if one.is_package]
    found = {name: house.circles(house.arrows_between_rooms(arrows(), name)) for name in packages}
    assert {name: circles for name, circles in found.items() if circles} == {}


@pytest.mark.parametrize(("package", "most"), [("pipeline.plan", 15), ("warehouse", 12)])
def test_few_rooms_know_each_other(package: str, most: int) -> None:
    assert sum(map(len, house.arrows_between_rooms(arrows(), package).values())) <= most


def test_no_stage_imports_a_later_one() -> None:
    assert house.arrows_between_rooms(arrows(), "pipeline").keys() >= {f"pipeline.{name}" for name in STAGES}
    assert arrows_to_later_stages(arrows()) == set()


def arrows_to_later_stages(files: house.Arrows) -> set[tuple[str, str]]:
    rooms = house.arrows_between_rooms(files, "pipeline")
    return {
        (early, late)
        for number, early in enumerate(STAGES)
        for late in STAGES[number + 1 :]
        if f"pipeline.{late}" in rooms.get(f"pipeline.{early}", ())
    }


def test_a_circle_and_an_arrow_to_a_later_stage_would_be_found() -> None:
    files: house.Arrows = {
        "pipeline.state": {"pipeline.plan.spaces.tables"},
        "pipeline.plan.spaces.tables": {"pipeline.commit.load"},
        "pipeline.plan.spaces.router": set(),
        "pipeline.commit.load": {"pipeline.plan.spaces.router"},
    }
    assert house.circles(files) == set()
    rooms = house.arrows_between_rooms(files, "pipeline")
    assert house.circles(rooms) == {frozenset({"pipeline.plan", "pipeline.commit"})}
    assert arrows_to_later_stages(files) == {("state", "plan"), ("plan", "commit")}
    files["pipeline.plan.spaces.router"].add("pipeline.plan.spaces.tables")
    assert house.circles(files) == {frozenset(files) - {"pipeline.state"}}


def test_a_module_says_what_it_is_and_stays_short() -> None:
    found = {
        name(file): faults(file.stem, file.read_text(), is_test=room_of(file) == "tests") for file in MODULES
    }
    assert {file: what for file, what in found.items() if what} == {}


def faults(stem: str, text: str, *, is_test: bool) -> list[str]:
    docstring = ast.get_docstring(parsed(text)) or ""
    found = []
    if not docstring.split("\n")[0].rstrip().endswith((".", ":", "?")):
        found.append("the first line of its docstring is no sentence")
    if len(text.splitlines()) > (LONGEST_TEST if is_test else LONGEST_MODULE):
        found.append("too long")
    if stem in {"utils", "util", "helpers", "common", "misc"}:
        found.append("a name that says nothing")
    return found


@pytest.mark.parametrize(
    ("stem", "text", "expected"),
    [
        ("keys", '"""What it is."""\n', 0),
        ("keys", "x = 1\n", 1),
        ("keys", '"""What it is"""\n', 1),
        ("keys", '"""What it is."""\n' + "\n" * LONGEST_MODULE, 1),
        ("utils", '"""What it is."""\n', 1),
    ],
)
def test_a_faulty_module_would_be_found(stem: str, text: str, expected: int) -> None:
    assert len(faults(stem, text, is_test=False)) == expected


def test_functions_stay_short() -> None:
    """Bodies, without docstrings: 95 of 100 fit the limit, and none is twice as long."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    trees = {name(file): parsed(file.read_text()) for file in MODULES if room_of(file) != "tests"}
    lengths = sorted(
        (length(node), module, node.name)
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    )
    assert lengths[len(lengths) * 95 // 100][0] <= LONGEST_FUNCTION
    assert [found for found in lengths if found[0] > 2 * LONGEST_FUNCTION] == []


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    return (function.end_lineno or first.lineno) - first.lineno + 1


FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:work|root)/\w"),
    "the host of a package registry": re.compile(
        r"\b(?:pypi|pythonhosted|maven|debian|npmjs|crates)\.(?:org|com|net|io)\b", re.IGNORECASE
    ),
    "an index of packages": re.compile(
        r"^\s*(?:--(?:extra-)?index-url\b|--find-links\b|-[if]\s)", re.MULTILINE
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    found = [
        f"{name(file)}: {match[0]}"
        for file in tracked()
        for match in [FORBIDDEN[what].search(file.read_text(encoding="utf-8", errors="replace"))]
        if match
    ]
    assert found == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a path of one machine", 'open("/' + 'work/x")'),
        ("a path of one machine", "cd /" + "root/project"),
        ("the host of a package registry", "https://repo1.maven" + ".org/x"),
        ("an index of packages", "--index-url" + " x"),
    ],
)
def test_what_is_forbidden_would_be_found(what: str, text: str) -> None:
    assert FORBIDDEN[what].search(text)


NAMED = re.compile(r"`((?:" + "|".join(house.ROOMS) + r")(?:\.\w+)+)`")
NOT_HERE = {"airflow", "moto", "werkzeug", "addition", "bits", "doubled", "library", "product", "splice"}
"""Packages of other environments, and modules that tests write."""

EXAMPLES = {"tests/test_structure.py", "tests/schemas/test_compiled.py", "tests/test_wheel.py"}
"""Their texts are examples of imports, or import from a wheel."""

IMPORT = re.compile(r"^\s*(?:from|import) \w", re.MULTILINE)

OTHER_NAMES = {
    "aggregator.allocation",
    "aggregator.jobs.main",
    "aggregator.json",
    "config.main",
    "config.warehouse",
}
"""Properties of tables, files, and attributes that look like modules."""


@cache
def defined() -> dict[str, set[str]]:
    """Return what each module of the project defines."""
    return {name: one.names() for name, one in house.modules().items()}


def exists(text: str) -> bool:
    """Whether a dotted name is that of a module, or of something that a module defines."""
    parts = text.split(".")
    for size in range(len(parts), 0, -1):
        module = ".".join(parts[:size])
        if module in defined():
            return size == len(parts) or parts[size] in defined()[module]
    return False


def test_texts_name_only_modules_that_exist() -> None:
    texts = [file for file in tracked() if file.suffix in {".py", ".md"} and file.name != "CHANGELOG.md"]
    wrong = [
        f"{name(file)}: {text}"
        for file in texts
        for text in NAMED.findall(file.read_text(encoding="utf-8"))
        if text not in OTHER_NAMES and not exists(text)
    ]
    assert wrong == []


def missing_imports(source: str) -> Iterator[str]:
    """Yield what code in the string literals of a module imports, and what does not exist."""
    for node in ast.walk(parsed(source)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and IMPORT.search(node.value)):
            continue
        try:
            code = ast.parse(textwrap.dedent(node.value))
        except SyntaxError:  # prose, or a template
            continue
        for one in ast.walk(code):
            if isinstance(one, ast.ImportFrom) and one.module in defined():
                names = (f"{one.module}.{alias.name}" for alias in one.names)
                yield from (name for name in names if not exists(name))
            elif isinstance(one, ast.ImportFrom | ast.Import):
                modules = [alias.name for alias in one.names] if isinstance(one, ast.Import) else [one.module]
                tops = (str(module).partition(".")[0] for module in modules)
                yield from (top for top in tops if find_spec(top) is None)


def test_code_in_texts_imports_only_what_exists() -> None:
    """Tests run it in processes of their own; types and imports are checked in modules alone."""
    texts = {name(file): file.read_text() for file in MODULES if room_of(file) == "tests"}
    found = {
        file: {*missing_imports(text)} - NOT_HERE for file, text in texts.items() if file not in EXAMPLES
    }
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys\nfrom warehouse import catalog\n", 0),
        ("import sys\nfrom no_such_package import cluster\n", 1),
        ("from warehouse.system_tables.cluster import nothing_like_this\n", 1),
    ],
)
def test_a_missing_import_would_be_found(code: str, expected: int) -> None:
    assert len([*missing_imports(f"CODE = {code!r}")]) == expected


def test_no_entry_point_hides_a_package() -> None:
    """The folder of the job that spark-submit runs comes first: `jobs/requests.py` would be the package `requests`."""
    names = {file.stem for file in (ROOT / "jobs").iterdir()}
    assert names & ({*metadata.packages_distributions()} | sys.stdlib_module_names) == set()


def test_imports_are_found_wherever_they_stand() -> None:
    source = "import os, config.deployment as c\ndef f():\n    from warehouse.lock.lock import x\n"
    assert rooms_of(source) == {"config", "warehouse"}


def test_the_lock_pins_every_package() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert len(pins) > 50
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*", pin)] == []


def test_every_lock_has_hashes_and_each_package_has_one_use() -> None:
    def rows(name: str) -> list[str]:
        lines = (ROOT / name).read_text().splitlines()
        return [line.partition("  #")[0] for line in lines if line and not line.startswith("#")]

    whole = rows("requirements.lock")
    run, test, docs = (rows(f"requirements-{use}.lock") for use in ("run", "test", "docs"))
    for line in [*whole, *rows("setup/s3.lock"), *rows("setup/tools.lock")]:
        assert re.fullmatch(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}", line), line
    assert sorted([*run, *test, *docs]) == sorted(whole)
    names = {line.partition("==")[0] for line in run}
    assert {"pyspark", "numba", "pyarrow", "great-expectations"} <= names
    assert not names & {"pytest", "mypy", "playwright", "ruff", "pip", "mkdocs", "ipykernel"}
    assert next(line for line in rows("setup/tools.lock") if line.startswith("setuptools==")) in whole


def test_what_runs_is_what_the_lock_pins() -> None:
    """Else a test passes with versions that nobody else gets."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = dict(line.split()[0].split("==") for line in lines if "==" in line)
    installed = {
        re.sub(r"[-_.]+", "-", distribution.name).lower(): distribution.version
        for distribution in metadata.distributions()
    }
    assert {name: installed.get(name) for name in pins} == pins
