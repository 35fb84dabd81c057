"""The documentation site: it is built without a warning, a broken link fails, and no page shows raw Markdown."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="needs the extra 'docs'")

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "docs",
    "setup",
    "conf",
    "sources",
    "mkdocs.yml",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
)
"""What the site is built of: pages, the hook, and the files that pages link to."""


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    ended = build(ROOT, folder)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_the_first_page_is_the_readme_with_links_of_the_site(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert '<h1 id="tarantool-aggregator">' in text
    assert 'href="semantics.html#what-is-refused-by-name"' in text
    assert 'src="pictures/flow-light.svg"' in text
    assert (site / "conf/demo.yaml").read_bytes() == (ROOT / "conf/demo.yaml").read_bytes()


def test_diagrams_are_drawn_by_mermaid(site: Path) -> None:
    diagrams = (ROOT / "docs/architecture.md").read_text().count("```mermaid")
    assert diagrams > 0
    assert (site / "architecture.html").read_text().count('<pre class="mermaid">') == diagrams


def test_no_page_shows_raw_markdown(site: Path) -> None:
    """A table or a list that follows a line of text is one on GitHub, and text for Python-Markdown."""
    for page in site.rglob("*.html"):
        text = re.sub(r"(?s)<(pre|script)\b.*?</\1>", "", page.read_text())
        assert re.findall(r"(?m)^(?:<p>)?(?:\| .*|\|-.*|```.*|- .*)$", text) == [], page.name


@pytest.mark.parametrize(
    ("page", "link", "said"),
    [
        ("docs/rid.md", "nowhere.md", "target is not found"),
        ("docs/rid.md", "sql.md#nowhere", "does not contain an anchor '#nowhere'"),
        ("README.md", "conf/nowhere.yaml", "target is not found"),
    ],
)
def test_a_broken_link_fails(page: str, link: str, said: str, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    for part in PARTS:
        source, target = ROOT / part, root / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    with (root / page).open("a") as file:
        file.write(f"\n[broken]({link})\n")
    ended = build(root, tmp_path / "site")
    assert ended.returncode == 1
    assert said in ended.stderr


def test_a_page_outside_the_menu_fails(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# A\n")
    (tmp_path / "docs/lost.md").write_text("# B\n")
    settings = (ROOT / "mkdocs.yml").read_text()
    nav = settings.index("nav:"), settings.index("theme:")
    settings = settings[: nav[0]] + "nav: [index.md]\n" + settings[nav[1] :]
    (tmp_path / "mkdocs.yml").write_text(settings.replace("hooks: [setup/site.py]\n", ""))
    ended = build(tmp_path, tmp_path / "site")
    assert ended.returncode == 1
    assert "lost.md" in ended.stderr
