"""The page of a grid: what is in it, how large it is, and what it does in a real browser."""

import base64
import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from recorded import Row, overview_in, rebind, record

from taskloom.core import Event
from taskloom.registry.results.ledger import Ledger
from taskloom.runs.show.report.page import render_report
from taskloom.runs.show.visible import visible

EVIL = "<script>window.hacked = 1</script>\"'&\u202e"
ROWS = [
    Row("sum", reported={"sst": 0.7}),
    Row("pcgrad", set={"stages.0.combiner": {"name": "pcgrad"}}),
    Row("better", 1.6, set={"stages.0.optimizer.lr": 0.1}),
    Row("worse", 0.6, set={"stages.0.optimizer.lr": 0.2}),
    Row(EVIL, 1.02),
    Row("gone"),
]
SEEN: dict[str, Any] = {
    "metrics": {"sst": {"margin": 0.25}},
    "train": {"sst": 0.75},
    "diagnostics": {"pairs": {"para+sst": {"cosine": -0.5, "conflicts": 0.75}}, "removed": 0.125},
}
CLAIMS = [{"says": f"Better is better {EVIL}", "better": "better", "than": "sum"}, {"better": "pcgrad", "than": "sum"}]
FAILED = {("gone", seed): f"loss {EVIL} is nan" for seed in range(3)} | {("pcgrad", 2): "no"}
SECTIONS = [
    "forest",
    "table",
    "claims",
    "effects",
    "learning",
    "diagnostics",
    "bars",
    "errors",
    "data-sets",
    "failures",
]
SECTIONS += ["environment", "cells"]
#: Files in memory are synced at once.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def registry(folder: Path) -> Path:
    spec = {"claims": CLAIMS, "margin": 0.01, "description": EVIL, "notes": [EVIL]}
    return record(folder / "r", ROWS, baseline="sum", failed=FAILED, epochs=SEEN, **spec)


def page_of(registry: Path, **spec: Any) -> str:
    return render_report(overview_in(registry, **spec))


@pytest.fixture(scope="module")
def page(folder: Path, registry: Path) -> Path:
    path = folder / "report.html"
    path.write_text(page_of(registry), encoding="utf-8")
    return path


# The file


class Outline(HTMLParser):
    """What a page holds: elements, which must be closed in order, with their attributes."""

    EMPTY = ("meta", "link", "br", "wbr", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get(attribute)) is not None]


def data_of(text: str) -> Any:
    """What the script of a page reads."""
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def test_the_page_is_whole_in_itself_and_every_number_leads_to_its_cell(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    outline = Outline(text)
    ids = outline.all("id")
    assert len(ids) == len({*ids})
    links = outline.all("href")
    assert {link[1:] for link in links if link.startswith("#")} <= {*ids}
    assert [link for link in links if not link.startswith("#")] == ["data:,"]
    assert not outline.all("src")
    assert "://" not in text
    sections = [attributes["id"] for tag, attributes in outline.elements if tag == "section"]
    assert sections == SECTIONS
    for index, row in enumerate(ROWS):
        assert links.count(f"#r{index}") > 5, row.label


def test_the_page_says_what_was_scored(page: Path) -> None:
    shown = page.read_text(encoding="utf-8").partition('id="data-sets"')[2].partition("</section>")[0]
    for part in (">sst<", ">sts<", ">dev<", "0 to 5, mean ", "constant", "seen"):
        assert part in shown, part
    assert "unreadable" not in shown


def test_nothing_that_a_user_wrote_is_markup(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<script>window" not in text
    assert "\u202e" not in text
    scripts = [attributes for tag, attributes in Outline(text).elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert len(text.rsplit("<script>")[-1]) < 8_000, "the script is small"
    name, contents = data_of(text)["baselines"]["4"]
    assert name == visible(EVIL)
    with_that_baseline = Outline("".join(itertools.chain(*json.loads(zlib.decompress(base64.b64decode(contents))))))
    assert "script" not in {tag for tag, _ in with_that_baseline.elements}


def test_the_tables_can_be_read_aloud(page: Path) -> None:
    outline = Outline(page.read_text(encoding="utf-8"))
    tags = [tag for tag, _ in outline.elements]
    assert tags.count("caption") == tags.count("table")
    assert all(attributes.get("scope") for tag, attributes in outline.elements if tag == "th")
    figures = [attributes for tag, attributes in outline.elements if tag == "svg"]
    assert all(figure.get("aria-hidden") == "true" or figure.get("aria-labelledby") for figure in figures)


def test_the_same_results_give_the_same_page(page: Path, registry: Path) -> None:
    assert page.read_text(encoding="utf-8") == page_of(registry)


@pytest.mark.parametrize(("rows", "seeds", "most"), [(20, 5, 500_000), (1000, 1, 3_000_000)])
def test_size(rows: int, seeds: int, most: int) -> None:
    labels = [f"a combiner of number {number}, learning rate {number / 1e5}" for number in range(rows)]
    drawn = [Row(label, 1 + 0.3 * (number % 7 == 0)) for number, label in enumerate(labels)]
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        text = page_of(record(Path(name) / "r", drawn, seeds=range(seeds), examples=40, epochs=SEEN))
    data = data_of(text)
    assert len(text.encode()) < most
    assert len(data["baselines"]) + data["left"] == rows
    assert data["left"] == 0 or len(data["baselines"]) > 15


def test_results_without_stored_predictions_have_a_page_too(registry: Path, folder: Path) -> None:
    copy = record(folder / "bare", ROWS[:2], baseline="sum")
    for file in copy.glob("cells/*/scores-dev.safetensors"):
        file.unlink()
    rebind(copy)  # as in a registry of a version that kept none
    text = page_of(copy)
    assert "their predictions are not in the registry" in text
    assert 'id="errors"' not in text


def test_a_figure_that_is_not_a_number_is_named_and_not_averaged(folder: Path) -> None:
    registry = record(folder / "nan", ROWS[:2], baseline="sum")
    with Ledger.open(registry, create=False) as ledger:
        cell = ledger.grid("made").cells[0].cell
        ledger.write(Event("finished", cell.id, {"scores": {**cell.scores, "sst": math.nan}}))
    rebind(registry)
    text = page_of(registry)
    assert "sst is nan" in text
    assert "(2 of 3)" in text


LIGHT = "import sys; from taskloom.runs.cli import cli; cli(sys.argv[1:], standalone_mode=False); print(*sys.modules)"


def test_a_report_imports_neither_torch_nor_matplotlib(registry: Path, tmp_path: Path) -> None:
    arguments = ["report", "made", "--registry", str(registry), "-o", str(tmp_path / "x.html")]
    done = subprocess.run([sys.executable, "-c", LIGHT, *arguments], capture_output=True, text=True, check=True)
    assert {"torch", "matplotlib"} & {*done.stdout.split()} == set()
    assert (tmp_path / "x.html").stat().st_size > 10_000


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, Browser(Path(profile)) as started:
        yield started


def labels(browser: Browser, table: str = "#scores-table") -> list[str]:
    rows = f"[...document.querySelectorAll('{table} tbody tr')].filter(row => !row.hidden)"
    return list(browser.run(f"{rows}.map(row => row.cells[0].textContent)"))


def choose(browser: Browser, control: str, value: str, event: str = "change") -> None:
    browser.run(
        f"(() => {{const c = document.querySelector('{control}'); c.value = {json.dumps(value)};"
        f"c.dispatchEvent(new Event('{event}', {{bubbles: true}}))}})()"
    )


@needs_chromium
def test_sorting_by_mouse_and_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    before = labels(browser)
    assert before[0] == "sum"
    browser.click("#scores-table thead th:nth-child(6) button")
    assert (labels(browser)[0], labels(browser)[-2:]) == ("better", ["worse", "gone"])
    assert browser.run("document.querySelector('#scores-table [aria-sort]').ariaSort") == "descending"
    browser.run("document.querySelector('#scores-table thead th:nth-child(6) button').focus()")
    browser.key("Enter")
    assert (labels(browser)[0], labels(browser)[-1]) == ("worse", "gone"), "what has no figure stays last"
    browser.click("#scores-table thead th:first-child button")
    assert sorted(before) == sorted(labels(browser)) != before
    assert browser.run("document.querySelectorAll('#scores-table [aria-sort]').length") == 1


@needs_chromium
def test_filtering(browser: Browser, page: Path) -> None:
    browser.open(page)
    choose(browser, "#filter", "R", "input")
    assert {"pcgrad", "better", "worse"} <= {*labels(browser)}
    assert "sum" not in labels(browser)
    assert labels(browser) == labels(browser, "#forest-table")
    choose(browser, "#verdict", "better")
    assert labels(browser) == ["better"]
    assert browser.run("document.querySelector('#found').textContent") == "1 of 6 rows"
    choose(browser, "#filter", "", "input")
    choose(browser, "#verdict", "any verdict")
    assert len(labels(browser)) == 6


@needs_chromium
def test_another_baseline_gives_what_a_page_with_that_baseline_shows(
    browser: Browser, page: Path, registry: Path, folder: Path
) -> None:
    sections = "header > p, #forest, #table tbody"
    shown = f"[...document.querySelectorAll('{sections}')].map(part => part.outerHTML)"
    for index, row in enumerate(ROWS[:5]):
        other = folder / "other.html"
        other.write_text(page_of(registry, baseline=row.label), encoding="utf-8")
        browser.open(other)
        expected = browser.run(shown)
        browser.open(page)
        choose(browser, "#base", str(index))
        chosen = f"document.querySelector('.base').textContent == {json.dumps(visible(row.label))}"
        browser.wait(lambda chosen=chosen: browser.run(chosen))
        assert browser.run(shown) == expected
        assert browser.errors == []


@needs_chromium
def test_what_is_under_the_pointer_is_named(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.point_at("#learning figure .l[data-r='2'] polyline")
    browser.point_at("#bars a[data-r='2'] rect")
    assert browser.run("document.querySelector('#tip').textContent").startswith("better: ")
    assert browser.run("document.querySelector('#tip').hidden") is False
    browser.point_at("#learning .legend [data-r='3']")
    assert browser.run("[...new Set([...document.querySelectorAll('.l.on')].map(e => e.dataset.r))]") == ["3"]
    browser.point_at("h1")
    assert browser.run("document.querySelector('#tip').hidden") is True
    assert browser.run("document.querySelectorAll('.dim').length") == 0


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_requested_and_nothing_complains(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    assert browser.requests == [page.as_uri()]
    assert browser.errors == []
    assert browser.run("window.hacked") is None
    colour = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", colour))) < 150) == dark


@needs_chromium
def test_on_a_phone_only_tables_are_scrolled_sideways(browser: Browser, page: Path) -> None:
    browser.open(page, width=390, height=844)
    assert browser.run("document.documentElement.scrollWidth") == 390
    assert browser.run("document.querySelector('#table .wide').scrollWidth") > 390


@needs_chromium
def test_without_scripts_and_in_print_all_is_there(browser: Browser, page: Path) -> None:
    browser.open(page, script=False)
    tree = browser.send("Accessibility.getFullAXTree")["nodes"]
    names = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if "role" in node}
    assert ("columnheader", "overall") in names
    assert ("rowheader", "better") in names
    assert not any(role in ("button", "combobox") for role, _ in names), "controls that do nothing are not shown"
    assert ("image", "sst: score") in names
    browser.open(page)
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.run("document.querySelector('#controls').getClientRects().length") == 0
    assert browser.run("getComputedStyle(document.querySelector('#table .wide')).overflowX") == "visible"
    browser.send("Emulation.setEmulatedMedia", media="")
