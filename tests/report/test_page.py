"""The page as text: self-contained, well-formed, and safe against what ids and column names may hold."""

import base64
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hcm_scale.report import card, page, sections
from hcm_scale.report.explain import Explanation, Neighbor

World = Callable[..., Any]
HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>&\u2028\u202e"
HOSTILE += "\"' onload='alert(1)' {{ 7 * 7 }}{% raw %}{#"
VOID = {"meta", "link", "input", "br"}


class Outline(HTMLParser):
    """Collects the elements of a page and fails where one is closed out of order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: defaultdict[str, str] = defaultdict(str)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts[self.open[-1] if self.open else ""] += data


def macro(template: str, name: str) -> Callable[..., str]:
    """A macro of a template as a function from values to markup."""
    return getattr(page.templates().get_template(template).module, name)


@pytest.fixture(scope="module")
def report(scored_world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    world = scored_world(300, columns=("size", HOSTILE, "c" * 200), first_ids=(HOSTILE, "i" * 200, "`tick`"))
    return world.report(
        tmp_path_factory.mktemp("page"),
        run={"name": HOSTILE, "seed": 0, "version": "0", "command": HOSTILE, "hardware": HOSTILE, "num_samples": 2},
        labels={"counts": [1, 2, 3, 4], "stored": [1, 2, 3, 4]},
        stages=[{"name": HOSTILE, "seconds": 1.0, "peak_rss_bytes": None, "skipped": True, "detail": {"a": HOSTILE}}],
    )


@pytest.fixture(scope="module")
def outline(report: dict[str, Any]) -> Outline:
    outline = Outline()
    outline.feed(page.render(report))
    outline.close()
    return outline


def test_page__is_well_formed_and_runs_one_script(outline: Outline):
    assert outline.open == []
    scripts = [attributes.get("type") for tag, attributes in outline.elements if tag == "script"]
    assert scripts == [None, "application/json"]
    assert not [tag for tag, _ in outline.elements if tag in ("img", "iframe", "object", "form")]


def test_page__shows_hostile_text_as_text(outline: Outline):
    for element in ("title", "bdi", "code", "td", "p"):  # name, ids and columns, command, stage, hardware
        assert HOSTILE in outline.texts[element]
    assert any(attributes.get("title") == HOSTILE for _, attributes in outline.elements)
    assert all(not name.startswith("on") for _, attributes in outline.elements for name in attributes)
    assert any(attributes.get("title") == "i" * 200 for _, attributes in outline.elements)


def test_page__asks_nobody_for_anything(outline: Outline, report: dict[str, Any]):
    links = [attributes.get(key) for _, attributes in outline.elements for key in ("href", "src") if key in attributes]
    assert all(link is not None and link.startswith(("#", "data:")) for link in links)
    style = re.search(r"<style>(.*?)</style>", page.render(report), re.S)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_page__policy_allows_its_own_style_and_script_only(outline: Outline, report: dict[str, Any]):
    policy = next(a["content"] for tag, a in outline.elements if tag == "meta" and "http-equiv" in a)
    for tag in ("style", "script"):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", page.render(report), re.S)
        assert body is not None
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in str(policy)
    assert "unsafe" not in str(policy)
    assert not [attributes for _, attributes in outline.elements if "style" in attributes]


def test_page__data_survives_the_journey(report: dict[str, Any]):
    data = re.search(r'id="ranking-data"[^>]*>(.*?)</script>', page.render(report), re.S)
    assert data is not None
    assert not set("<>&") & set(data[1])
    table = json.loads(data[1])
    ranks = ["hop_rank", "closure_rank", "context_rank", "context_closure_rank", "attributes_rank", "cohesion_rank"]
    wanted = ["rank", "id", "ahp", "evidence", "reason", *ranks, "degree", "label"]
    assert [column["key"] for column in table["columns"]] == list(table["values"]) == wanted
    assert table["values"]["id"][0] == HOSTILE
    assert all(len(values) == 300 for values in table["values"].values())


def test_page__every_link_has_a_target_and_every_id_is_unique(outline: Outline):
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {str(a["href"])[1:] for tag, a in outline.elements if tag == "a"}
    assert targets <= {*ids, *(f"node-{rank}" for rank in range(1, 301))}  # cards, or rows of the table


def test_page__leaves_out_sections_with_nothing_to_show(scored_world: World, tmp_path: Path):
    world = scored_world(labelled=False)
    text = page.render(world._replace(purified=None).report(tmp_path, top=0))
    for missing in ("cost", "explained", "attributes"):
        assert f'id="{missing}"' not in text
        assert f'href="#{missing}"' not in text
    assert "ROC" not in text


def test_page__tells_what_attributes_became(scored_world: World, tmp_path: Path):
    row = {
        "columns": "<size>",
        "count": 1,
        "rule": "heavy tail",
        "seen": "heavy tail, 0 to 5e+11",
        "done": "normal scores",
    }
    report = scored_world().report(tmp_path, features={"scale": "auto", "columns": [row]})
    assert report["attributes"] == [row]
    text = page.render(report)
    assert 'href="#attributes"' in text
    for told in ("&lt;size&gt;", row["seen"], row["done"]):
        assert told in text


def test_page__tells_what_columns_became_and_has_notes(scored_world: World, tmp_path: Path):
    world = scored_world()
    line = {"table": "nodes", "column": "<age>", "type": "int64", "distinct": 1234, "gaps": None, "use": "a number"}
    graph = replace(world.graph, info={"ingest": {"told": [line] * 201}})
    text = page.render(world._replace(graph=graph).report(tmp_path, notes=["a & b"]))
    for told in ("&lt;age&gt;", "int64", "1,234", "a number", "and 1 more columns", '<p class="note">a &amp; b</p>'):
        assert told in text


@pytest.mark.parametrize(
    "chart",
    [
        sections.histogram_chart("<b>", [0.0, 0.5, 1.0], {"a": [0.0, 0.0], "<b>": [0.5, 0.5]}, "x", "y"),
        sections.bar_chart("bars", ["1", "≥ 2"], [0, 0], "x", "y"),
        sections.bar_chart("bars", ["a"], [12_345_678], "x", "y"),
    ],
)
def test_charts__are_well_formed_and_inside_their_frame(chart: sections.Chart):
    root = ElementTree.fromstring(macro("figures.html", "figures")([chart]))
    assert (root.findtext("figcaption") or "").strip() == chart.title
    drawing = root.find("svg[@role='img']")
    assert drawing is not None
    for element in drawing.iter():
        numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", element.attrib.get("d", ""))]
        assert all(-1 <= number <= sections.Frame.width + 1 for number in numbers)
        assert "nan" not in str(element.attrib.values()).lower()


def test_neighborhood__places_far_neighbours_far_and_caps_their_number(scored_world: World):
    graph = scored_world(60).graph
    row = graph.indices[graph.indptr[0] : graph.indptr[1]].tolist()
    peers = tuple(Neighbor(v, v, 1.0 + 3.0 * i / len(row), 0.2, i % 2 == 0) for i, v in enumerate(row))[::-1]
    explanation = Explanation("<0>", 0, 1, 60, {}, None, peers, ())
    picture = card.layout(graph, explanation, num_rings=4, limit=3)
    assert picture["hidden"] == len(row) - 3
    radii = [(p["x"] - 120) ** 2 + (p["y"] - 120) ** 2 for p in picture["points"]]
    assert radii == sorted(radii, reverse=True)
    drawn = ElementTree.fromstring(macro("neighborhood.html", "neighborhood")(picture, "<0>"))
    assert len(drawn.findall("g")) == 3
    assert "<0>" in drawn.attrib["aria-label"]


def test_neighborhood__links_are_the_edges_between_neighbours(scored_world: World):
    graph = scored_world(30).graph
    row = graph.indices[graph.indptr[5] : graph.indptr[6]].tolist()
    edges = {(u, int(v)) for u in range(30) for v in graph.indices[graph.indptr[u] : graph.indptr[u + 1]]}
    explanation = Explanation(5, 5, 1, 30, {}, None, tuple(Neighbor(v, v, 2.0, 0.0, None) for v in row), ())
    picture = card.layout(graph, explanation, num_rings=4)
    wanted = {(i, j) for i in range(len(row)) for j in range(i + 1, len(row)) if (row[i], row[j]) in edges}
    assert {tuple(link) for link in picture["links"]} == wanted
    places = {(p["x"], p["y"]) for p in picture["points"]}
    assert len(places) == len(row)
