"""The served page in a real browser: it pages, filters, finds and explains, and nothing else is asked for."""

from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from hcm_scale.serve.server import Server

pytestmark = pytest.mark.gate
Browser = Any  # of tests/conftest.py


def test_serve__finds_and_explains_any_node(desktop: Browser, server: Server, run_dir):
    table = pq.read_table(run_dir / "scores" / "scores.parquet")
    desktop.open(server.url)
    assert desktop.column(1) == [str(rank) for rank in range(1, 16)]
    desktop.click("#ranking-next")
    desktop.wait("return document.querySelector('#ranking-table td')?.innerText === '16'")

    desktop.type("#ranking-search", table["id"][280].as_py())
    desktop.wait("return document.querySelector('#ranking-table td')?.innerText === '281'")
    assert desktop.column(2)[0] == table["id"][280].as_py()
    desktop.click("#ranking-table tbody a")
    desktop.wait("return document.querySelector('#node-281') !== null")
    assert desktop.run("return document.querySelector('#node-281 h3').innerText") == table["id"][280].as_py()

    desktop.run("document.querySelector('#card .parts a.id').click()")
    desktop.wait("return document.querySelector('#card .node')?.id === location.hash.slice(1)")
    desktop.wait("return document.querySelector('#node-281') === null")
    desktop.run("history.back()")
    desktop.wait("return document.querySelector('#node-281') !== null")

    assert desktop.run("return window.hacked === undefined")
    asked = desktop.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert {urlsplit(address).netloc for address in asked} == {server.hosts[0]}
    assert desktop.console() == []


def test_serve__filters_and_sorts(desktop: Browser, server: Server, run_dir):
    table = pq.read_table(run_dir / "scores" / "scores.parquet").to_pylist()
    desktop.open(server.url)
    desktop.run("document.getElementById('ranking-kind').value = 'closure'")
    desktop.run("document.getElementById('ranking-kind').dispatchEvent(new Event('change'))")
    wanted = [str(row["rank"]) for row in table if row["evidence"] == "closure"]
    desktop.wait(f"return document.getElementById('ranking-status').innerText.endsWith(' of {len(wanted)}')")
    assert desktop.column(1) == wanted[:15]
    desktop.run(
        "[...document.querySelectorAll('#ranking-table th button')].find(b => b.innerText === 'Degree').click()"
    )
    desktop.wait("return document.querySelector('th[aria-sort=descending]')?.innerText.includes('Degree')")
    most = max(row["degree"] for row in table if row["evidence"] == "closure")
    place = desktop.run("return document.querySelector('th[aria-sort=descending]').cellIndex") + 1
    assert desktop.column(place)[0] == str(most)
    assert desktop.console() == []


def test_serve__fits_a_phone(phone: Browser, server: Server):
    phone.open(server.url + "#node-1")
    phone.wait("return document.querySelector('#node-1') !== null")
    assert phone.run("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    outside = """return [...document.querySelectorAll('main *, header *')].filter(e =>
        !e.closest('.scroll, svg, bdi') && e.getBoundingClientRect().right > 360.5).map(e => e.outerHTML)"""
    assert phone.run(outside) == []
