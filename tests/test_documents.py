"""The pages: each link leads to a file and a heading, each command that they name exists."""

import re
from pathlib import Path

import pytest
import yaml

from tests import house

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: those of its headings, as GitHub makes them, and those that it sets itself."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {*re.findall(r'<a id="([^"]+)">', text)} | {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


ROOMS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
NAMED_PATH = re.compile(rf"`((?:{'|'.join(map(re.escape, ROOMS))})/[^`\s:]*)`")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(NAMED_PATH.findall(page.read_text()))
    assert [path for path in sorted(named) if not any(ROOT.glob(path.rstrip("/")))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_make_exist(page: Path) -> None:
    assert set(re.findall(r"`make ([a-z-]+)", page.read_text())) <= TARGETS


def test_the_workflow_runs_the_commands_of_the_readme() -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())["jobs"]["first-steps"]["steps"]
    run = " ".join(step.get("run", "") for step in steps)
    first = (ROOT / "README.md").read_text().partition("```\n")[2].partition("```")[0]
    commands = re.findall(r"^make [a-z-]+", first, re.MULTILINE)
    assert commands == ["make demo", "make live-demo"]
    assert [command for command in commands if command not in run] == []


def test_each_hook_runs_a_tool_of_the_project() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} <= {".venv/bin/ruff", ".venv/bin/python"}


PLACE = re.compile(r"`([A-Za-z_]+)` in\s+`([\w/]+\.py)`")
"""A name that a page says is in a file."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_are_in_the_files_that_a_page_says(page: Path) -> None:
    wrong = [
        f"{name} in {file}"
        for name, file in PLACE.findall(page.read_text())
        if not re.search(rf"\b{name}\b", (ROOT / file).read_text())
    ]
    assert wrong == []


def test_names_of_the_code_in_the_glossary_exist() -> None:
    defined = set().union(*(one.names() for one in house.modules().values()))
    text = (ROOT / "docs/glossary.md").read_text()
    listed = " ".join(re.findall(r"in the code: ([^)]*)", text))
    named = {*re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", text), *re.findall(r"`(\w+)`", listed)}
    assert sorted(named - defined) == []


NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?`")
"""A name, or a call."""


def test_names_in_contributing_exist() -> None:
    texts = [(file.stem, file.read_text()) for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    words = {word for _, text in texts for word in re.findall(r"\w+", text)}
    wrong = []
    for name in set(NAME.findall((ROOT / "CONTRIBUTING.md").read_text())):
        *owners, last = name.split(".")
        places = [
            text
            for stem, text in texts
            if owners and (stem == owners[-1] or re.search(rf"^class {owners[-1]}\b", text, re.MULTILINE))
        ]
        is_defined = any(re.search(rf"^ *(def |class )?{last}\b", text, re.MULTILINE) for text in places)
        if not (is_defined if owners else last in words) and not (ROOT / name).is_file():
            wrong.append(name)
    assert sorted(wrong) == []
