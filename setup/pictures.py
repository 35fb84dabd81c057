"""Makes the pictures of the pages: the flow of the data, drawn here, the report's page and Spark's in a real browser.

    python setup/pictures.py [drawings]       # or `make pictures`; with `drawings` those alone, without Spark

The report is that of four spaces of the recordings. Each picture is there twice, for light and for dark. A test
compares the drawings with the files in `docs/pictures`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
SIZE = (960, 400)
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

STAGES = ("plan", "changelog", "lookup", "reduce", "resolve", "encode", "write", "commit")
"""The stages of a batch, as the packages of `pipeline` are called."""

THEMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "light": {
            **{"ink": "#1f2328", "dim": "#59636e", "line": "#8c959f", "box": "#f6f8fa", "edge": "#d1d9e0"},
            **{"a": "#0969da", "b": "#bc4c00", "won": "#1a7f37"},
        },
        "dark": {
            **{"ink": "#f0f6fc", "dim": "#9198a1", "line": "#656c76", "box": "#151b23", "edge": "#3d444d"},
            **{"a": "#4493f8", "b": "#f0883e", "won": "#3fb950"},
        },
    }
)


@dataclass
class Drawing:
    """An SVG in one theme, to which shapes are added; coordinates are pixels."""

    colours: Mapping[str, str]
    shapes: list[str] = field(default_factory=list)

    def box(
        self, x: int, y: int, width: int, height: int, edge: str = "edge", *, filled: bool = True
    ) -> None:
        """Add a box with round corners."""
        fill = self.colours["box"] if filled else "none"
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
            f'stroke="{self.colours[edge]}"/>'
        )

    def text(self, x: int, y: int, text: str, style: str = "") -> None:
        """Add a line; the style has some of: bold, small, mono, middle, and the name of a colour."""
        words = style.split()
        colour = next((word for word in words if word in self.colours), "ink")
        family = "ui-monospace, 'DejaVu Sans Mono', monospace" if "mono" in words else FONT
        self.shapes.append(
            f'<text x="{x}" y="{y}" fill="{self.colours[colour]}" font-family="{family}" '
            f'font-size="{12 if "small" in words else 14}"'
            f"{' font-weight=' + chr(34) + '600' + chr(34) if 'bold' in words else ''}"
            f"{' text-anchor=' + chr(34) + 'middle' + chr(34) if 'middle' in words else ''}>{escape(text)}</text>"
        )

    def arrow(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """Add a line through points, with a head at the last one."""
        path = " ".join(f"{x},{y}" for x, y in points)
        self.shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{self.colours["line"]}" stroke-width="1.5" '
            f'marker-end="url(#head)"{" stroke-dasharray=" + chr(34) + "5 4" + chr(34) if dashed else ""}/>'
        )

    def svg(self, title: str) -> str:
        """Return the file's text."""
        width, height = SIZE
        head = (
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{self.colours["line"]}"/></marker>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label="{escape(title)}">\n<defs>{head}</defs>\n'
            + "\n".join(self.shapes)
            + "\n</svg>\n"
        )


def flow(theme: str) -> str:
    """Return the drawing of the way from two replicasets to the tables, as the text of an SVG."""
    drawing = Drawing(THEMES[theme])
    for y, name, balance in ((16, "A", 975), (216, "B", 980)):
        _draw_replicaset(drawing, y, name, balance)
    _draw_inputs(drawing)
    _draw_stream(drawing)
    _draw_tables(drawing)
    return drawing.svg("Logs and live rows of two replicasets become one Delta table, by one Spark stream")


def _draw_replicaset(drawing: Drawing, y: int, name: str, balance: int) -> None:
    low = name.lower()
    drawing.box(16, y, 208, 150, low)
    drawing.text(32, y + 26, f"replicaset {name}", f"bold {low}")
    for x, server, role in ((32, f"{low}1", "master"), (128, f"{low}2", "replica")):
        drawing.box(x, y + 40, 80, 46, filled=False)
        drawing.text(x + 40, y + 60, server, "bold middle")
        drawing.text(x + 40, y + 77, role, "small dim middle")
    drawing.text(32, y + 110, f"accounts 202: balance {balance}", "small mono")
    drawing.text(32, y + 132, "replica ids 1, 2", "small dim")


def _draw_inputs(drawing: Drawing) -> None:
    drawing.text(300, 108, ".snap and .xlog files", "small dim middle")
    drawing.arrow((224, 120), (388, 120))
    drawing.text(306, 254, "live, as an", "small dim middle")
    drawing.text(306, 269, "anonymous replica", "small dim middle")
    drawing.arrow((224, 280), (256, 280), dashed=True)
    drawing.box(258, 282, 96, 46)
    drawing.text(306, 302, "daemon", "bold middle")
    drawing.text(306, 319, "fills a spool", "small dim middle")
    drawing.arrow((354, 304), (372, 304), (372, 240), (388, 240))


def _draw_stream(drawing: Drawing) -> None:
    drawing.box(390, 16, 250, 350)
    drawing.text(515, 42, "Spark Structured Streaming", "bold middle")
    drawing.text(515, 60, "one stream, one offset", "small dim middle")
    steps = (
        ("read", "whole transactions, no holes"),
        ("remap", "replica ids to global ids"),
        ("apply", "UPDATE by the rules of its server"),
        ("resolve", "a policy chooses: before_replace"),
        ("commit", "all tables, then one epoch"),
    )
    for number, (name, text) in enumerate(steps):
        y = 74 + 50 * number
        drawing.box(406, y, 218, 42, filled=False)
        drawing.text(420, y + 18, name, "bold small")
        drawing.text(420, y + 34, text, "small dim")
    drawing.text(515, 338, " · ".join(STAGES[:4]), "small dim middle")
    drawing.text(515, 354, " · ".join(STAGES[4:]), "small dim middle")


def _draw_tables(drawing: Drawing) -> None:
    drawing.arrow((640, 120), (694, 120))
    drawing.box(696, 16, 248, 216)
    drawing.text(712, 42, "Delta tables", "bold")
    drawing.text(712, 66, "accounts", "bold small mono")
    for x, name, value in ((712, "id", "202"), (752, "balance", "980"), (822, "_replicaset_id", "B")):
        drawing.text(x, 84, name, "small mono dim")
        drawing.text(x, 101, value, "small mono b")
    rows = (
        ("_conflicts", "B won, A lost, and why"),
        ("_changelog", "every row of every log"),
        ("_versions", "each replicaset's own"),
        ("_epochs", "one commit for all"),
    )
    for number, (name, text) in enumerate(rows):
        drawing.text(712, 134 + 24 * number, name, "bold small mono")
        drawing.text(800, 134 + 24 * number, text, "small dim")
    drawing.arrow((820, 232), (820, 264))
    drawing.box(696, 266, 248, 100)
    drawing.text(712, 292, "SQL: Spark, DuckDB, Polars, pandas", "small")
    drawing.text(712, 314, "who · prove · report · alerts", "small")
    drawing.text(712, 336, "a Tarantool that follows the tables", "small")
    drawing.text(712, 354, "a standby copy", "small")


CONFIGURATION = """
warehouse: warehouse
checkpoint: checkpoint
start: logs
sources:
  - {{name: a1, path: {recordings}/a1}}
  - {{name: b1, path: {recordings}/b1}}
spaces: {{include: [accounts, counters, docs, vin]}}
policies: {{spaces: {{accounts: {{sequence: [updated]}}}}}}
validation: {{ahead: null}}
"""


def write_report(folder: Path) -> Path:
    """Aggregate a part of the recordings, and return the report's page."""
    file, page = folder / "pictures.yaml", folder / "report.html"
    file.write_text(
        CONFIGURATION.format(recordings=ROOT / "tests" / "recordings" / "2.6.0"), encoding="utf-8"
    )
    subprocess.run(
        [sys.executable, "-m", "jobs.demo", "--config", str(file), "--page", str(page)], cwd=ROOT, check=True
    )
    return page


def photograph(page: Path) -> None:
    """Write the pictures of a report's page: its part on conflicts, as a browser shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for theme in THEMES:
            shown = chromium.new_page(color_scheme=theme, viewport={"width": 1040, "height": 900})  # type: ignore[arg-type]
            shown.goto(page.absolute().as_uri())
            shown.wait_for_selector(f"html[data-drawn={theme}]", timeout=60_000)
            shown.locator("#conflicts").screenshot(path=FOLDER / f"report-{theme}.png")
            shown.close()
        chromium.close()


SPARK_JOB = """
import sys
from config.deployment import load
from jobs.aggregate import aggregate

aggregate(load(sys.argv[1]), once=True)
print("done", flush=True)
input()
"""
"""Runs the stream once, and keeps Spark's pages until a line is written to it."""


def photograph_spark(folder: Path) -> None:
    """Write the picture of Spark's page of jobs, after a stream whose batches run in tasks."""
    from playwright.sync_api import sync_playwright

    file = folder / "spark.yaml"
    text = CONFIGURATION.format(recordings=ROOT / "tests" / "recordings" / "2.6.0")
    file.write_text(text + "executor: tasks\nmax_bytes_per_trigger: 100 KiB\n", encoding="utf-8")
    submitted = "--master local[2] --conf spark.ui.port=4060 pyspark-shell"
    job = subprocess.Popen(
        [sys.executable, "-c", SPARK_JOB, str(file)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": submitted},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    if job.stdout.readline() != "done\n":
        raise SystemExit("the stream has failed")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        shown = chromium.new_page(viewport={"width": 1040, "height": 620})
        shown.goto("http://localhost:4060/jobs/")
        shown.wait_for_selector("#completedJob-table-div, table")
        # The links name files of this machine.
        shown.add_style_tag(content="a.name-link { display: none !important }")
        shown.screenshot(path=FOLDER / "spark-jobs.png", full_page=True)
        chromium.close()
    job.communicate("\n")


def main(arguments: list[str]) -> None:
    """Write the drawings, and unless they alone are asked for, the pictures of the page."""
    FOLDER.mkdir(exist_ok=True)
    for theme in THEMES:
        (FOLDER / f"flow-{theme}.svg").write_text(flow(theme), encoding="utf-8")
    if arguments != ["drawings"]:
        with tempfile.TemporaryDirectory() as folder:
            photograph(write_report(Path(folder)))
            photograph_spark(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
