"""The served page in a real browser: it pages, filters, finds, explains and takes verdicts, and asks nobody else."""

import statistics
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from hcm_scale.review import teach, verdicts
from hcm_scale.run.finished import FinishedRun
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
    kind = statistics.mode(row["evidence"] for row in table)
    desktop.open(server.url)
    desktop.run("document.getElementById('ranking-kind').value = arguments[0]", kind)
    desktop.run("document.getElementById('ranking-kind').dispatchEvent(new Event('change'))")
    wanted = [str(row["rank"]) for row in table if row["evidence"] == kind]
    desktop.wait(f"return document.getElementById('ranking-status').innerText.endsWith(' of {len(wanted)}')")
    assert desktop.column(1) == wanted[:15]
    desktop.run(
        "[...document.querySelectorAll('#ranking-table th button')].find(b => b.innerText === 'Degree').click()"
    )
    desktop.wait("return document.querySelector('th[aria-sort=descending]')?.innerText.includes('Degree')")
    most = max(row["degree"] for row in table if row["evidence"] == kind)
    place = desktop.run("return document.querySelector('th[aria-sort=descending]').cellIndex") + 1
    assert desktop.column(place)[0] == str(most)
    assert desktop.console() == []


def given(own_run) -> dict[int, str]:
    """The verdicts in the run, by rank."""
    ids = pq.read_table(own_run / "scores" / "scores.parquet")["id"].to_pylist()
    return {ids.index(name) + 1: verdict for name, verdict in verdicts.latest(own_run).by_id().items()}


STORED = "return document.querySelector('tr[data-rank=\"{}\"] .judge.stored .{}[aria-pressed=true]') !== null"
CURRENT = "return Number(document.querySelector('tr.current').dataset.rank)"


def test_verdicts__by_buttons_and_keys_on_rows(desktop: Browser, start, own_run):
    server = start("anna")
    desktop.open(server.url)
    desktop.click("tr[data-rank='3'] .bad")
    desktop.wait(STORED.format(3, "bad"))
    assert given(own_run) == {3: "bad"}
    assert desktop.run(CURRENT) == 3
    desktop.type("body", "ngju")  # the next one is good, the one after that unsure
    desktop.wait(STORED.format(5, "unsure"))
    assert given(own_run) == {3: "bad", 4: "good", 5: "unsure"}
    desktop.type("body", "b")
    desktop.wait(STORED.format(5, "bad"))
    assert desktop.run("return document.getElementById('counter').innerText") == "3 verdicts, 2 bad"
    desktop.type("body", "z")
    desktop.wait(STORED.format(5, "unsure"))
    desktop.type("body", "z\ue003")  # and Backspace
    desktop.wait("return document.getElementById('counter').innerText === '1 verdict, 1 bad'")
    assert given(own_run) == {3: "bad"}
    desktop.type("#ranking-search", "bgu")  # is text there
    desktop.wait("return document.getElementById('ranking-status').innerText === 'No node matches'")
    assert given(own_run) == {3: "bad"}

    verdicts.append(own_run, [(pq.read_table(own_run / "scores" / "scores.parquet")["id"][0], "good")], "<i>bert</i>")
    desktop.open(server.url)
    desktop.wait(STORED.format(3, "bad"))
    assert desktop.run("return document.querySelector('tr[data-rank=\"1\"] .good').title") == "given by <i>bert</i>"
    desktop.click("tr[data-rank='3'] .none")
    desktop.wait("return document.getElementById('counter').innerText === '1 verdict, 0 bad'")
    assert desktop.console() == []


def test_verdicts__by_keys_on_cards_of_nodes_not_yet_reviewed(desktop: Browser, start, own_run):
    desktop.open(start().url)
    desktop.run("document.getElementById('ranking-verdict').value = 'none'")
    desktop.run("document.getElementById('ranking-verdict').dispatchEvent(new Event('change'))")
    desktop.type("body", "\ue007")  # Enter explains the first
    for rank in range(1, 19):  # over the end of a page, while rows leave the list
        desktop.wait(f"return document.querySelector('#node-{rank} ~ #card-verdict .bad') !== null")
        desktop.type("body", "b" if rank % 2 else "g")
        desktop.wait("return document.querySelector('#card-verdict .judge.stored [aria-pressed=true]') !== null")
        desktop.type("body", "n")
    assert given(own_run) == {rank: "bad" if rank % 2 else "good" for rank in range(1, 19)}
    assert desktop.console() == []


def test_review_and_teach__by_buttons(desktop: Browser, start, own_run):
    drawn = teach.next_nodes(FinishedRun(own_run), 20)["id"].to_pylist()[:7]
    desktop.open(start().url)
    desktop.click("#review")
    shown = "const box = document.querySelector('#card-verdict .judge'); return box && !box.matches('.given')"
    for number in range(7):
        desktop.wait(f"{shown} && document.querySelector('#card-verdict p').innerText.startsWith('Worth a verdict')")
        desktop.type("body", "g" if number % 3 else "b")
        desktop.wait("return document.querySelector('#card-verdict .judge.stored [aria-pressed=true]') !== null")
        desktop.type("body", "n")
    assert list(verdicts.latest(own_run).by_id()) == drawn
    desktop.run("document.getElementById('teach').click()")
    desktop.wait("return document.getElementById('taught') !== null")
    desktop.wait("return document.querySelector('th[aria-sort=ascending]')?.innerText.includes('Taught')")
    assert "7 verdicts (3 bad, 4 good)" in desktop.run("return document.getElementById('taught').innerText")
    assert desktop.column(4) == [str(rank) for rank in range(1, 16)]
    assert desktop.console() == []


def test_verdicts__that_cannot_be_stored_are_not_shown(desktop: Browser, start, own_run):
    desktop.open(start().url)
    (own_run / verdicts.FILE).mkdir()
    desktop.click("tr[data-rank='2'] .bad")
    desktop.wait("return !document.getElementById('message').hidden")
    assert "is not stored" in desktop.run("return document.getElementById('message').innerText")
    assert desktop.run("return document.querySelectorAll('[aria-pressed=true]').length") == 0


def test_serve__fits_a_phone(phone: Browser, server: Server):
    phone.open(server.url + "#node-1")
    phone.wait("return document.querySelector('#node-1') !== null")
    sizes = """return [...document.querySelectorAll('.judge button, .review button')].filter(
        e => e.offsetParent).map(e => e.getBoundingClientRect()).filter(
        r => r.width < 44 || r.height < 44 || r.right > 360).length"""
    assert phone.run(sizes) == 0
    assert phone.run("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    outside = """return [...document.querySelectorAll('main *, header *')].filter(e =>
        !e.closest('.scroll, svg, bdi') && e.getBoundingClientRect().right > 360.5).map(e => e.outerHTML)"""
    assert phone.run(outside) == []
    p = "return [...document.querySelectorAll('#ranking-table td.p')].map(e => e.getBoundingClientRect().right)"
    assert 0 < max(phone.run(p)) <= 360 - 16  # whole, without a swipe


def test_edges__open_by_their_tab_and_lead_to_the_cards_of_their_ends(desktop: Browser, phone: Browser, start):
    url = start().url
    for browser in (desktop, phone):
        browser.open(url)
        assert browser.run("return document.getElementById('edges').hidden")
        browser.click("nav a[href='#edges']")
        browser.wait("return document.querySelectorAll('#edge-list tbody tr').length === 100")
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        end = browser.run("return document.querySelector('#edge-list a.id').innerText")
        browser.run("document.querySelector('#edge-list a.id').click()")
        browser.wait("return document.querySelector('#card .node') !== null")
        assert browser.run("return document.querySelector('#card h3').innerText") == end
        assert browser.run("return window.hacked === undefined")
        assert browser.console() == []
