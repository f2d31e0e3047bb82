"""The report page in a real browser: it sorts, searches and toggles, at desktop and phone width, without an error.

Chromium is driven through chromedriver's HTTP protocol (W3C WebDriver), which needs no package beyond the two binaries.
"""

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hcm_scale.report.write import write_report

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)",
)
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
LONG = "https://example.org/" + "a-very-long-path/" * 11


class Browser:
    """One headless Chromium session."""

    def __init__(self, address: str, options: dict[str, Any]):
        capabilities = {
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": CHROMIUM, **options},
        }
        self.root = f"{address}/session"
        answer = self.call("POST", "", {"capabilities": {"alwaysMatch": capabilities}})
        self.root += f"/{answer['sessionId']}"

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["value"]

    def open(self, page: Path | str) -> None:
        self.call("POST", "/url", {"url": page.as_uri() if isinstance(page, Path) else page})
        self.wait("return document.querySelectorAll('#ranking-table tbody tr').length > 0")

    def wait(self, script: str) -> None:
        """Until the script returns something true."""
        for _ in range(200):
            if self.run(script):
                return
            time.sleep(0.05)
        raise AssertionError(f"in vain: {script}")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def element(self, css: str) -> str:
        return next(iter(self.call("POST", "/element", {"using": "css selector", "value": css}).values()))

    def click(self, css: str) -> None:
        self.call("POST", f"/element/{self.element(css)}/click", {})

    def type(self, css: str, text: str) -> None:
        self.call("POST", f"/element/{self.element(css)}/value", {"text": text})

    def column(self, number: int) -> list[str]:
        """What the ranked table shows in one column, from 1."""
        script = "return [...document.querySelectorAll(arguments[0])].map(cell => cell.innerText.trim())"
        return self.run(script, f"#ranking-table tbody td:nth-child({number})")

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]


@pytest.fixture(scope="module")
def driver() -> Iterator[str]:
    """The address of a chromedriver of our own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                with urllib.request.urlopen(f"{address}/status", timeout=5):
                    break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _session(driver: str, **options: Any) -> Iterator[Browser]:
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"]
    browser = Browser(driver, {"args": arguments, **options})
    try:
        yield browser
    finally:
        browser.call("DELETE", "")


@pytest.fixture
def desktop(driver: str) -> Iterator[Browser]:
    yield from _session(driver)


@pytest.fixture
def phone(driver: str) -> Iterator[Browser]:
    metrics = {"width": 390, "height": 844, "pixelRatio": 2.0, "touch": True}
    yield from _session(driver, mobileEmulation={"deviceMetrics": metrics})


@pytest.fixture(scope="module")
def page(scored_world: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of 1,200 nodes with labels, training records, stages, a hostile id and an endless one."""
    world = scored_world(1200, columns=("size", "<b>bold</b>", "c" * 200), first_ids=(HOSTILE, LONG))
    out = tmp_path_factory.mktemp("report")
    write_report(
        out,
        run={"name": HOSTILE, "seed": 0, "version": "0", "hardware": "a machine", "num_samples": 5},
        **world._asdict(),
        records=[{"step": i, "loss": 1 / i, "accuracy": [0.5, 0.6, 0.7, 0.8], "auc": 0.7} for i in range(1, 50)],
        labels={"counts": [10, 200, 3000, 40000], "stored": [10, 200, 300, 400]},
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
    desktop.click(header.format(10) + " button")
    degrees = [int(text.replace(",", "")) for text in desktop.column(10)]
    assert degrees == sorted(degrees, reverse=True)
    assert len(set(degrees)) > 1
    assert desktop.run(state, header.format(10)) == "descending"
    desktop.click(header.format(10) + " button")
    assert desktop.run(state, header.format(10)) == "ascending"
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


def test_page__shows_a_hostile_id_as_text(desktop: Browser, page: Path):
    desktop.open(page)
    assert desktop.column(2)[0] == HOSTILE
    assert desktop.run("return document.querySelector('.lede .name').innerText") == HOSTILE
    assert desktop.run("return document.querySelector('#node-1 h3').innerText") == HOSTILE
    assert desktop.run("return document.querySelectorAll('img, b b, iframe').length") == 0
    assert desktop.run("return window.hacked === undefined")
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
    assert phone.run("return [innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    outside = """return [...document.querySelectorAll('main *, header *')].filter(e =>
        !e.closest('.scroll, .skip, svg, bdi') && e.getBoundingClientRect().right > 390.5).map(e => e.outerHTML)"""
    assert phone.run(outside) == []
    height = "return document.querySelector('#ranking .scroll').offsetHeight"
    before = phone.run(height)
    phone.type("#ranking-search", "node-777")
    assert phone.run(height) == before
    assert phone.console() == []
