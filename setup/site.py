"""Adds pages and files outside of `docs/` to the documentation site, as a hook of MkDocs that `mkdocs.yml` names.

README.md becomes the first page, with its pictures. Each file of the repository that a page links to (such as
`conf/demo.yaml`) is in the site under its own path, so `mkdocs build --strict` checks those links like all others.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
FIRST = ("README.md", "index.md")
"""The first page: its path in the repository, and in the site."""
PAGES = (FIRST, ("CONTRIBUTING.md", "CONTRIBUTING.md"), ("CHANGELOG.md", "CHANGELOG.md"))
"""The pages outside `docs/`, each with its paths in the repository and in the site."""

_PICTURE = re.compile(r'(?<=")docs/(?=pictures/)')
"""The folder before the path of a picture."""

_LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?(?=\))")


def site_links(text: str) -> str:
    """Return the text of a page in the repository's root with its links changed for the site, whose root is `docs/`."""

    def site_link(link: re.Match[str]) -> str:
        path = dict(PAGES).get(link["path"], link["path"].removeprefix("docs/"))
        return path + (link["anchor"] or "")

    return _PICTURE.sub("", _LINK.sub(site_link, text))


def linked_files(text: str) -> Iterator[str]:
    """Yield the files outside `docs/`, and not in `PAGES`, that a page of the repository's root links to."""
    for link in _LINK.finditer(text):
        path = link["path"]
        if not path.startswith("docs/") and path not in dict(PAGES) and (ROOT / path).is_file():
            yield path


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages outside `docs/` and the files that they link to."""
    texts = {name: (ROOT / file).read_text() for file, name in PAGES}
    for name, text in texts.items():
        files.append(File.generated(config, name, content=site_links(text)))
    for path in sorted({path for text in texts.values() for path in linked_files(text)}):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files
