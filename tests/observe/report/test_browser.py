"""The page in a real browser: no console message, no network request, all parts present, in light and dark mode."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from jobs.report import write_page
from tests.jobs.written import Node, replicasets_of
from tests.observe.report.warehouses import EVIL, write_warehouse
from tests.pipeline.deployment import Deployment
from tests.truth import own
from warehouse.warehouse import Warehouse

Theme = Literal["light", "dark"]

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: setup/setup.sh with-chromium"),
]

SECTIONS = ("summary", "topology", "sources", "conflicts", "trouble", "spaces", "tables", "rid", "requests")
CHARTS = ("rows", "lag", "sizes", "conflicts_by_space", "conflicts_over_time")


@dataclass
class OpenPage:
    """An open page, with its console messages and the URLs that it requested."""

    page: Page
    messages: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module", params=[(1, "light"), (64, "dark")], ids=["1 light", "64 dark"])
def themed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Theme]:
    """Return a page with so many sources, and the theme in which it is opened."""
    count, theme = request.param
    folder = tmp_path_factory.mktemp("report")
    write_warehouse(folder / "warehouse", count)
    made = folder / f"{count}.html"
    write_page(Warehouse(None, str(folder / "warehouse")), made)
    return made, theme


@pytest.fixture
def opened(browser: Browser, themed: tuple[Path, Theme]) -> Iterator[OpenPage]:
    file, theme = themed
    context = browser.new_context(color_scheme=theme, viewport={"width": 1200, "height": 900})
    found = OpenPage(context.new_page())
    found.page.on("console", lambda message: found.messages.append(message.text))
    found.page.on("pageerror", lambda error: found.messages.append(str(error)))
    found.page.on("request", lambda sent: found.urls.append(sent.url))
    found.page.goto(file.as_uri())
    found.page.wait_for_selector(f"html[data-drawn={theme}]", timeout=60_000)
    yield found
    context.close()


@pytest.fixture
def narrow(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """Yield the page of a warehouse with all types, many problems and long names, in a window of a phone's size."""
    names = [f"name_{number}_{'x' * 60}" for number in range(13)]
    node = Node(tmp_path, "c1").define(700, "w" * 60, [("id", "unsigned"), *((n, "string") for n in names)])
    node.put(700, 1, *["\udcff"] * 13)
    for number in range(5):
        node.define(701 + number, f"strict_{number}").put(701 + number, 1, "\udcff", 1, 1)
    node.close()
    sources = {name: own().directory(name) for name in ("a1", "b1")} | {"c1": node.path}
    spaces = {"misfits": {"strict_*": "quarantine"}}
    deployment = Deployment(tmp_path, sources, replicasets_of("c1"), spaces=spaces)
    deployment.run()
    file = tmp_path / "narrow.html"
    write_page(Warehouse(None, str(tmp_path / "warehouse")), file, deployment.config())
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    yield page
    context.close()


def test_the_page_with_all_types_fits_a_narrow_window(narrow: Page) -> None:
    assert narrow.evaluate("document.documentElement.scrollWidth") == 390
    cards = narrow.locator(".problem").all()
    conditions = [card.locator(".condition").inner_text() for card in cards]
    assert {"misfits", "rows_set_aside"} <= set(conditions)
    assert len(set(conditions)) == len(conditions)
    tallest = max((card.bounding_box() or {"height": 0})["height"] for card in cards)
    assert tallest < 844
    # Neither a name nor a number is broken in a table, which scrolls by itself.
    broken = narrow.eval_on_selector_all(
        "td.short, td.number",
        "cells => cells.filter(c => c.getClientRects().length > 1 || c.clientHeight > 60)",
    )
    assert broken == []


def brightness(page: Page, css_property: str) -> float:
    colour = page.evaluate(f"getComputedStyle(document.body).{css_property}")
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3


def test_the_page_is_complete_in_light_and_dark(opened: OpenPage, themed: tuple[Path, Theme]) -> None:
    page, sources = opened.page, int(themed[0].stem)
    assert opened.messages == []
    # The page requests only itself; embedded images are no network requests.
    assert [url for url in opened.urls if not url.startswith("data:")] == [themed[0].as_uri()]
    assert [name for name in SECTIONS if page.locator(f"section#{name}").count() != 1] == []
    drawn = [name for name in CHARTS if page.locator(f"#chart-{name} svg .mark-group path").count() > 0]
    assert set(drawn) == set(CHARTS if sources > 1 else CHARTS[:3])
    if sources == 1:  # the lines end at the outage; many sources are a heat map
        assert page.locator("#chart-lag svg .mark-line path").count() == 2
    assert page.locator("article.replicaset").count() == sources
    assert page.locator(".id.global").count() == 2 * sources
    assert page.locator("#table-sources tbody tr").count() == sources
    assert page.locator("#table-gaps tbody tr").count() == sources
    assert page.locator("#table-gaps tbody tr:first-child td:first-child").inner_text() == "open"
    assert page.locator("#table-quarantine tbody tr").count() == sources
    assert page.locator("#table-pending tbody tr").count() == sources
    assert page.locator("details.space tbody tr").count() == 2
    # A script in a value from a log is shown as text, and does not run.
    assert EVIL in page.locator("#table-quarantine").inner_text()
    # No part of the page is wider than the window.
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    dark = page.get_attribute("html", "data-theme") == "dark"
    back, front = brightness(page, "backgroundColor"), brightness(page, "color")
    assert (back < 60 and front > 200) if dark else (back > 200 and front < 60)
    labels = page.eval_on_selector("#chart-rows svg .role-axis-label text", "e => e.getAttribute('fill')")
    assert labels == ("#9aa4b0" if dark else "#59636e")


def test_the_button_changes_light_to_dark_and_back(opened: OpenPage) -> None:
    page = opened.page
    before = page.get_attribute("html", "data-drawn")
    after = "dark" if before == "light" else "light"
    for theme in (after, before):
        page.click("#theme")
        page.wait_for_selector(f"html[data-drawn={theme}]")
        assert page.locator("#chart-rows svg").count() == 1
    assert opened.messages == []
