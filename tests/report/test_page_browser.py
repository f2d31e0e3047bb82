"""The report page in a real browser: it sorts, searches and toggles, at desktop and phone width, without an error."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Browser = Any  # of tests/conftest.py
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
LONG = "https://example.org/" + "a-very-long-path/" * 11


@pytest.fixture(scope="module")
def page(scored_world: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of 1,200 nodes with labels, stages, a hostile id and an endless one."""
    world = scored_world(1200, columns=("size", "<b>bold</b>", "c" * 200), first_ids=(HOSTILE, LONG))
    out = tmp_path_factory.mktemp("report")
    world.report(
        out,
        run={"name": HOSTILE, "seed": 0, "version": "0", "hardware": "a machine", "num_samples": 5},
        labels={"counts": [10, 200, 3000, 40000], "stored": [10, 200, 300, 400]},
        table_rows=1000,
        stages=[
            {"name": "graph", "seconds": 1.5, "peak_rss_bytes": 1e9, "skipped": False, "detail": {"num_nodes": 1200}}
        ],
    )
    return out / "report.html"


def test_page__sorts_searches_pages_and_toggles_without_a_console_error(desktop: Browser, page: Path):
    desktop.open(page)
    assert desktop.column(1) == [str(rank) for rank in range(1, 16)]

    header = "#ranking-table th:nth-child({})"
    state = "return document.querySelector(arguments[0]).getAttribute('aria-sort')"
    desktop.click(header.format(12) + " button")
    degrees = [int(text.replace(",", "")) for text in desktop.column(12)]
    assert degrees == sorted(degrees, reverse=True)
    assert len(set(degrees)) > 1
    assert desktop.run(state, header.format(12)) == "descending"
    desktop.click(header.format(12) + " button")
    assert desktop.run(state, header.format(12)) == "ascending"
    assert desktop.run(state, header.format(1)) == "none"
    desktop.click(header.format(1) + " button")
    assert desktop.column(1)[0] == "1"

    desktop.click("#ranking-next")
    assert desktop.column(1)[0] == "16"
    desktop.type("#ranking-search", "NODE-77")
    assert all("node-77" in text for text in desktop.column(2))
    assert len(desktop.column(2)) >= 1
    desktop.type("#ranking-search", "no such node")
    assert desktop.column(2) == []
    assert (
        desktop.run("return document.getElementById('ranking-status').innerText") == "None of the first 1,000 matches"
    )

    paper = "return getComputedStyle(document.body).backgroundColor"
    before = desktop.run(paper)
    desktop.click("#theme")
    assert desktop.run(paper) != before
    desktop.click("#theme")
    assert desktop.run(paper) == before
    assert desktop.console() == []


@pytest.mark.gate
def test_page__finds_a_node_far_down_and_goes_from_neighbour_to_neighbour(desktop: Browser, page: Path):
    desktop.open(page)
    ranked = json.loads((page.parent / "report.json").read_text())
    low = next(i for i, name in enumerate(ranked["table"]["id"]) if i > 800 and len(name) == len("node-1000"))
    desktop.type("#ranking-search", ranked["table"]["id"][low])
    assert desktop.column(1) == [str(low + 1)]
    cards = {node["rank"] for node in ranked["top"]}
    peers = [peer["rank"] for node in ranked["top"] for peer in node["neighbors"]]
    one, other = [rank for rank in peers if rank not in cards and rank <= 1000][:2]
    for rank, where in ((one, "td a.id"), (other, "svg a")):
        link = f"document.querySelector(`.node {where}[href='#node-{rank}']`)"
        desktop.run(f"{link}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
        desktop.wait(f"return document.querySelector('tr.opened td')?.innerText.replace(',', '') === '{rank}'")
        assert desktop.run("return document.querySelector('tr.detail').innerText").startswith("Rank")
    assert desktop.console() == []


@pytest.mark.gate
def test_page__csv_is_the_list_as_filtered(desktop: Browser, page: Path):
    desktop.open(page)
    ranked = json.loads((page.parent / "report.json").read_text())["table"]
    desktop.run("URL.createObjectURL = (blob) => (window.saved = blob.text(), 'data:,')")
    desktop.run("HTMLAnchorElement.prototype.click = () => {}")
    desktop.run("document.getElementById('ranking-kind').value = 'hop'")
    desktop.run("document.getElementById('ranking-kind').dispatchEvent(new Event('change'))")
    desktop.run("document.getElementById('ranking-csv').dispatchEvent(new Event('click'))")
    rows = list(csv.DictReader(desktop.run("return window.saved").splitlines()))
    wanted = [i for i, kind in enumerate(ranked["evidence"]) if kind == "hop"]
    assert [row["id"] for row in rows] == [ranked["id"][i] for i in wanted]
    assert [int(row["degree"]) for row in rows] == [ranked["degree"][i] for i in wanted]


def test_page__shows_a_hostile_id_as_text(desktop: Browser, page: Path):
    desktop.open(page)
    assert desktop.column(2)[0] == HOSTILE
    assert desktop.run("return document.querySelector('.lede .name').innerText") == HOSTILE
    assert desktop.run("return document.querySelector('#node-1 h3').innerText") == HOSTILE
    assert desktop.run("return document.querySelectorAll('img, b b, iframe').length") == 0
    assert desktop.run("return window.hacked === undefined")
    whys = "[...document.querySelectorAll('#ranking-table td.why')].map((td) => td.innerText).join()"
    assert "`" not in desktop.run(f"return {whys}")
    assert desktop.console() == []


def test_page__runs_no_script_and_loads_nothing_of_its_own_accord(desktop: Browser, page: Path):
    desktop.open(page)
    desktop.run("document.body.insertAdjacentHTML('beforeend', '<svg onload=\"window.hacked = 1\"></svg>')")
    desktop.run("document.body.append(Object.assign(document.createElement('script'), {text: 'window.hacked = 1'}))")
    assert desktop.run("return window.hacked === undefined")
    assert all("Content Security Policy" in message for message in desktop.console())
    assert desktop.run("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page__fits_a_phone_and_does_not_shift(phone: Browser, page: Path, scheme: str):
    phone.open(page)
    phone.run("document.documentElement.dataset.theme = arguments[0]", scheme)
    assert phone.run("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    outside = """return [...document.querySelectorAll('main *, header *')].filter(e =>
        !e.closest('.scroll, .skip, svg, bdi') && e.getBoundingClientRect().right > 360.5).map(e => e.outerHTML)"""
    assert phone.run(outside) == []
    height = "return document.querySelector('#ranking .scroll').offsetHeight"
    before = phone.run(height)
    phone.type("#ranking-search", "node-777")
    assert phone.run(height) == before
    assert phone.console() == []


def test_page__fits_paper_of_a_narrow_column(desktop: Browser, page: Path):
    desktop.open(page)
    for command, given in (
        ("setEmulatedMedia", {"media": "print"}),
        ("setDeviceMetricsOverride", {"width": 720, "height": 1000, "deviceScaleFactor": 1, "mobile": False}),
    ):
        desktop.call("POST", "/goog/cdp/execute", {"cmd": f"Emulation.{command}", "params": given})
    outside = """return [...document.querySelectorAll('.stages *, .node *')].filter(e =>
        !e.closest('svg, bdi') && e.getBoundingClientRect().right > 720.5).map(e => e.outerHTML.slice(0, 80))"""
    assert desktop.run("return document.querySelectorAll('.edges tbody tr').length") > 0
    assert desktop.run(outside) == []
