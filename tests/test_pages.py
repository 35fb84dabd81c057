"""The pages: what is generated equals the code, command lines and configurations are right, pages stay short."""

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml

from config.deployment import load
from jobs.main import commands, main
from tests.jobs.deployment import Deployment
from tests.test_structure import STAGES
from tests.truth import own

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]

KILOBYTE = 1000
LONGEST_README, LONGEST_PAGE, LONGEST_IN_ALL = 8 * KILOBYTE, 15 * KILOBYTE, 170_000
LONG_PAGES = {"semantics.md"}
"""The page that may be longer: it is looked up."""


def script(name: str) -> ModuleType:
    """Return a script of `setup/` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "setup" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return script("reference")


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    return script("pictures")


def test_the_reference_pages_are_those_of_the_code(reference: ModuleType) -> None:
    old = [name for name, page in reference.PAGES.items() if (reference.FOLDER / name).read_text() != page()]
    assert old == [], "make reference"


def test_the_drawings_are_those_of_the_script(pictures: ModuleType) -> None:
    for theme in pictures.THEMES:
        assert (pictures.FOLDER / f"flow-{theme}.svg").read_text() == pictures.flow(theme), "make pictures"
    assert [one for one in STAGES if one in pictures.STAGES] == [*pictures.STAGES]


def test_the_pictures_of_the_readme_are_there() -> None:
    named = re.findall(r'(?:src|srcset)="([^"]+)"', README.read_text())
    assert len(named) == 4
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_pages_stay_short(reference: ModuleType) -> None:
    lengths = {page: page.stat().st_size for page in [README, *DOCS]}
    assert lengths[README] <= LONGEST_README
    long = [page.name for page, length in lengths.items() if length > LONGEST_PAGE]
    assert [name for name in long if name not in LONG_PAGES] == []
    written = (ROOT / "docs" / name for name in ("live-tests.md", "incidents.md"))
    generated = {*written, *(reference.FOLDER / name for name in reference.PAGES)}
    assert sum(length for page, length in lengths.items() if page not in generated) <= LONGEST_IN_ALL


def code_of(page: Path) -> Iterator[str]:
    """Yield the lines of a page's blocks of code, fenced and indented."""
    inside = False
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif inside or line.startswith("    "):
            yield line.strip().removeprefix("$ ")


def command_lines(page: Path) -> Iterator[str]:
    """Yield the command lines of `aggregator` on a page that are whole: a synopsis has brackets."""
    text = "\n".join(code_of(page)).replace("\\\n", " ")
    for line in text.splitlines():
        command = re.split(r"  #| \| | > | < ", line)[0].strip()
        if command.startswith("aggregator ") and not re.search(r"\[[A-Z-]", command):
            yield command


LINES = sorted({line for page in PAGES for line in command_lines(page)})


def accept(line: str) -> None:
    """Have click parse a command line; it raises `click.ClickException` for a wrong one."""
    command: click.Command = commands
    context = None
    words = shlex.split(line)[1:]
    while isinstance(command, click.Group):
        context = click.Context(command, info_name=command.name, parent=context)
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    try:
        command.make_context(command.name, words, parent=context)
    except click.BadParameter as error:
        if "does not exist" not in error.message:  # a file of the reader's
            raise


def test_there_are_command_lines() -> None:
    assert len(LINES) > 60


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_is_accepted(line: str) -> None:
    accept(line)


@pytest.mark.parametrize(
    "line", ["aggregator run", "aggregator run --config F --onse", "aggregator wo accounts 1 --config F"]
)
def test_a_wrong_command_line_would_be_seen(line: str) -> None:
    with pytest.raises(click.ClickException):
        accept(line)


CONFIGURATIONS = [
    (page, text)
    for page in PAGES
    for text in re.findall(r"^```yaml\n(warehouse: .*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    if "sources:" in text
]


@pytest.mark.parametrize(("page", "text"), CONFIGURATIONS, ids=[page.name for page, _ in CONFIGURATIONS])
def test_a_configuration_is_accepted(page: Path, text: str, tmp_path: Path) -> None:  # noqa: ARG001
    file = tmp_path / "page.yaml"
    file.write_text(text)
    config = load(str(file))
    assert {source.name for source in config.sources} == {
        one["name"] for one in yaml.safe_load(text)["sources"]
    }


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a configuration like conf/demo.yaml of one space, whose tables are written without Spark."""
    folder = tmp_path_factory.mktemp("demo")
    recording = own()
    sources = {node: recording.directory(node) for node in ("a1", "b1")}
    policies = {"spaces": {"accounts": {"sequence": ["updated"]}}}
    deployment = Deployment(folder, sources, spaces={"include": ["accounts"]}, policies=policies)
    deployment.write()
    file = folder / "demo.yaml"
    keys = {
        "warehouse": str(folder / "warehouse"),
        "checkpoint": str(folder / "checkpoint"),
        "database": deployment.database,
        "sources": [{"name": name, "path": str(path)} for name, path in sources.items()],
        **deployment.settings,
    }
    file.write_text(yaml.safe_dump(keys))
    return file


def test_the_readme_shows_what_who_prints(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, _, shown = README.read_text().partition("$ aggregator ")[2].partition("```")[0].partition("\n")
    name, *words = shlex.split(line.replace("conf/demo.yaml", str(demo)))
    assert main(name, words) == 0
    printed = capsys.readouterr().out.splitlines()
    patterns = [".*".join(map(re.escape, line.split("…"))) for line in shown.splitlines()]
    assert [p for p in patterns if not any(re.fullmatch(p, line) for line in printed)] == []


def test_the_commands_of_the_quickstart_run(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in command_lines(ROOT / "docs" / "quickstart.md") if "mine.yaml" not in line]
    ran = []
    for line in lines:
        name, *words = shlex.split(line.replace("conf/demo.yaml", str(demo)))[1:]
        if name != "sql":  # needs Spark: tests/jobs/test_deploy_page.py
            ran.append((name, main(name, words)))
            assert capsys.readouterr().out, line
    assert ran == [("status", 0), ("who", 0), ("explain-batch", 0), ("cat", 0)]
