"""The quickstart notebook runs as it is, in a kernel of its own, and prints what is stored in it.

After a change that is meant: `python -m tests.test_quickstart` stores what it prints.
"""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.soak

nbformat = pytest.importorskip("nbformat", reason="needs the extra 'notebook'")
nbclient = pytest.importorskip("nbclient", reason="needs the extra 'notebook'")

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "quickstart.ipynb"


def ran() -> Any:
    """Return the notebook after a run, with what it printed on stdout alone."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": NOTEBOOK.parent}})
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [
                nbformat.v4.new_output("stream", name="stdout", text=text) for text in [printed(cell)] if text
            ]
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def printed(cell: Any) -> str:
    return "".join(one.text for one in cell.outputs if one.output_type == "stream" and one.name == "stdout")


def test_it_prints_what_it_shows() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    again = [cell for cell in ran().cells if cell.cell_type == "code"]
    assert len(cells) > 5
    for cell, other in zip(cells, again, strict=True):
        assert printed(other) == printed(cell), cell.source


if __name__ == "__main__":
    nbformat.write(ran(), NOTEBOOK)
