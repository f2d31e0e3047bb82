"""Verdicts given on the served page: stored before they are answered, seen by all, and from this page alone."""

import csv
import errno
import html
import http.client
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import small_detector, small_graph

from hcm_scale.cli import commands
from hcm_scale.review import teach, verdicts
from hcm_scale.run.finished import FinishedRun
from hcm_scale.serve.server import Server


def request(server: Server, page: str, body: bytes | None = None, **headers: str | None) -> tuple[int, str]:
    """Status and text of a GET, or of a POST as the page would send it; a header given as None is left out."""
    sent = {"Host": server.hosts[0]}
    if body is not None:
        sent |= {"Origin": f"http://{server.hosts[0]}", "Content-Type": "application/json"}
        sent |= {"Sec-Fetch-Site": "same-origin", "Content-Length": str(len(body))}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest("GET" if body is None else "POST", page, skip_host=True, skip_accept_encoding=True)
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body)
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def about(server: Server, rank: int, verdict: str) -> bytes:
    """What the page posts for a node that it shows at a rank."""
    name = server.views.ranked["id"][rank - 1].as_py()
    return json.dumps({"id": name, "verdict": verdict, "of": server.views.identity}).encode()


def post(server: Server, rank: int, verdict: str) -> dict[str, Any]:
    status, text = request(server, f"/{server.token}/verdicts", about(server, rank, verdict))
    assert status == 200, text
    return json.loads(text)


def rows(server: Server, query: str = "") -> dict[str, Any]:
    status, text = request(server, f"/{server.token}/rows?{query}")
    assert status == 200, text
    return json.loads(text)


def ids(run_dir: Path) -> list[str]:
    return pq.read_table(run_dir / "scores" / "scores.parquet")["id"].to_pylist()


def test_post__is_stored_when_it_is_answered_and_there_after_a_reload(start, own_run: Path):
    server = start("anna")
    answer = post(server, 3, "bad")
    assert answer == {"verdict": "bad", "by": "anna", "counts": {"verdicts": 1, "bad": 1}}
    assert verdicts.latest(own_run).by_id() == {ids(own_run)[2]: "bad"}
    for again in (server, start("bert")):  # the same server, and one started later
        shown = rows(again)
        assert [(row["rank"], row["verdict"], row["by"]) for row in shown["rows"] if row["verdict"]] == [
            (3, "bad", "anna")
        ]
        assert shown["counts"] == {"verdicts": 1, "bad": 1}
        card = request(again, f"/{again.token}/explained?rank=3")[1]
        assert 'data-verdict="bad" data-by="anna"' in card


def test_post__takes_a_verdict_back_or_changes_it(start, own_run: Path):
    server = start()
    post(server, 1, "bad")
    assert post(server, 1, "good")["counts"] == {"verdicts": 1, "bad": 0}
    assert post(server, 1, "none") == {"verdict": "", "by": "", "counts": {"verdicts": 0, "bad": 0}}
    assert verdicts.latest(own_run).by_id() == {}
    assert rows(server)["rows"][0]["verdict"] == ""
    assert (own_run / verdicts.FILE).read_text().count("\n") == 3  # nothing is ever removed


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"Origin": None}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "https://{host}"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "none"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content_Type": None}, 415),
        ({"Content_Length": None}, 411),
        ({"Content_Length": "-1"}, 411),
        ({"Content_Length": "65537"}, 413),
        ({"Content_Length": "9" * 30}, 413),
    ],
)
def test_post__is_refused_unless_it_comes_from_the_page(start, own_run: Path, changed: dict[str, Any], status: int):
    server = start()
    headers = {name: value and value.format(host=server.hosts[0]) for name, value in changed.items()}
    body = about(server, 1, "bad")
    assert request(server, f"/{server.token}/verdicts", body, **headers)[0] == status
    assert not (own_run / verdicts.FILE).exists()
    assert request(server, f"/{server.token}/verdicts", body, Sec_Fetch_Site=None)[0] == 200  # an older browser


@pytest.mark.parametrize("page", ["/verdicts", "/x/verdicts", "//verdicts"])
def test_post__is_refused_without_the_token(start, own_run: Path, page: str):
    assert request(server := start(), page, about(server, 1, "bad"))[0] == 404
    assert not (own_run / verdicts.FILE).exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"id": "nobody", "verdict": "bad", OF}', "id='nobody' is not legal; it is that of a node"),
        (b'{"id": true, "verdict": "bad", OF}', "id=True is not legal"),
        (b'{"rank": 1, "verdict": "bad", OF}', "id=None is not legal"),
        (b'{ID, "verdict": "evil", OF}', "verdict 'evil' on"),
        (b'{ID, "verdict": ["bad"], OF}', "verdict ['bad'] on"),
        (b"{ID, OF}", "verdict '' on"),
        (b'{ID, "verdict": "bad"}', "of is missing"),
        (b'["rank"]', "legal is a JSON object"),
        (b"rank=1&verdict=bad", "legal is a JSON object"),
        (b"[" * 4096, "legal is a JSON object"),
        (b'{"rank": "\xff"}', "legal is a JSON object"),
    ],
)
def test_post__says_what_is_legal(start, own_run: Path, body: bytes, said: str):
    server = start()
    own = json.loads(about(server, 1, "bad"))
    for name in ("id", "of"):
        body = body.replace(name.upper().encode(), f'"{name}": {json.dumps(own[name])}'.encode())
    status, text = request(server, f"/{server.token}/verdicts", body)
    assert (status, text.startswith(said)) == (400, True), text
    assert not (own_run / verdicts.FILE).exists()


def test_post__loses_nothing_of_two_reviewers_at_once(start, own_run: Path):
    anna, bert = start("anna"), start("bert")

    def give(server: Server, first: int) -> None:
        for rank in range(first, 201, 2):
            post(server, rank, "bad" if rank % 3 else "unsure")

    with ThreadPoolExecutor(4) as reviewers:  # two on one page, one on a page of their own
        jobs = [reviewers.submit(give, anna, 1), reviewers.submit(give, anna, 2), reviewers.submit(give, bert, 2)]
        for job in jobs:
            job.result()
    names = ids(own_run)
    wanted = {names[rank - 1]: "bad" if rank % 3 else "unsure" for rank in range(1, 201)}
    assert verdicts.latest(own_run).by_id() == wanted
    assert len((own_run / verdicts.FILE).read_text().splitlines()) == 300
    for server in (anna, bert):
        assert rows(server)["counts"] == {"verdicts": 200, "bad": 134}


def post_to(server: Server, page: str) -> Any:
    status, text = request(server, f"/{server.token}/{page}", json.dumps({"of": server.views.identity}).encode())
    assert status == 200, text
    return json.loads(text)


def test_review__draws_what_the_command_draws(start, own_run: Path):
    server = start()
    post(server, 1, "bad")
    copy = shutil.copytree(own_run, own_run.parent / "copy")
    drawn = post_to(server, "review")
    names = ids(own_run)
    wanted = teach.next_nodes(FinishedRun(copy), 20)
    assert [names[rank - 1] for rank, _ in drawn] == wanted["id"].to_pylist()
    assert [why for _, why in drawn] == wanted["why"].to_pylist()
    assert len(drawn) == 20
    assert 1 not in dict(drawn)


def test_teach__ranks_as_the_command_does_and_the_page_says_what_was_taught(start, own_run: Path):
    server, table = start(), pq.read_table(own_run / "scores" / "scores.parquet")
    none = json.dumps({"of": server.views.identity}).encode()
    assert request(server, f"/{server.token}/teach", none)[0] == 400  # no verdicts yet
    assert request(server, f"/{server.token}/rows?sort=taught_rank")[0] == 400
    for rank in range(1, 41):
        post(server, rank, "bad" if table["degree"][rank - 1].as_py() > 10 else "good")
    verdicts.append(own_run, [("not in this graph", "bad")])
    copy = shutil.copytree(own_run, own_run.parent / "copy")
    answer = post_to(server, "teach")
    said = commands.teach_run([str(copy)])
    assert said.startswith("verdicts on 1 ids that are not in this graph: not in this graph\n")
    assert said.startswith(answer)
    taught = pq.read_table(own_run / "taught" / "taught.parquet")
    assert taught.equals(pq.read_table(copy / "taught" / "taught.parquet"))

    page = html.unescape(request(server, f"/{server.token}/")[1])
    for line in said.splitlines()[:-1]:
        assert line.strip() in page
    found = [row for page in range(20) for row in rows(server, f"sort=taught_rank&page={page}")["rows"]]
    assert [row["id"] for row in found] == taught["id"].to_pylist()
    assert [row["taught_rank"] for row in found] == list(range(1, 301))
    unseen = rows(server, "sort=taught_rank&verdict=none")["rows"]
    assert [row["id"] for row in unseen] == [row["id"] for row in taught.to_pylist() if row["verdict"] is None][:15]


def test_rows__are_filtered_by_verdict(start, own_run: Path):
    server, given = start(), {2: "bad", 3: "good", 5: "bad", 7: "unsure", 300: "good"}
    for rank, verdict in given.items():
        post(server, rank, verdict)
    for verdict in ("bad", "good", "unsure"):
        found = rows(server, f"verdict={verdict}")
        wanted = [rank for rank, other in given.items() if other == verdict]
        assert [row["rank"] for row in found["rows"]] == wanted
        assert found["total"] == len(wanted)
    found = rows(server, "verdict=none&page=19")
    assert ([row["rank"] for row in found["rows"]], found["total"]) == (list(range(290, 300)), 295)
    text = request(server, f"/{server.token}/scores.csv?verdict=bad")[1]
    assert [row["rank"] for row in csv.DictReader(text.splitlines())] == ["2", "5"]


def test_rows__show_verdicts_that_others_gave_meanwhile(start, own_run: Path):
    server = start()
    assert rows(server)["counts"]["verdicts"] == 0
    verdicts.append(own_run, [(ids(own_run)[0], "good"), ("not in this graph", "bad")], "<b>eve</b>")
    row = rows(server)["rows"][0]
    assert (row["verdict"], row["by"]) == ("good", "<b>eve</b>")
    card = request(server, f"/{server.token}/explained?rank=1")[1]
    assert "&lt;b&gt;eve" in card
    assert "<b>eve" not in card


def test_rows__say_which_line_is_damaged(start, own_run: Path):
    (own_run / verdicts.FILE).write_text("nonsense\n{}\n")
    server = start()
    status, text = request(server, f"/{server.token}/rows")
    assert status == 400
    assert "verdicts.jsonl: line 1 is damaged" in text


def test_post__says_that_nothing_can_be_written(start, own_run: Path, monkeypatch):
    monkeypatch.setattr(verdicts.os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    server = start()
    status, text = request(server, f"/{server.token}/verdicts", about(server, 1, "bad"))
    assert status == 500
    assert text.startswith(f"not stored, {own_run} cannot be written: No space left")


def test_post__of_a_run_whose_verdicts_are_a_folder_names_it(start, own_run: Path):
    (own_run / verdicts.FILE).mkdir()
    server = start()
    status, text = request(server, f"/{server.token}/verdicts", about(server, 1, "bad"))
    assert (status, f"{verdicts.FILE} is a link, a pipe or a folder" in text) == (400, True)


def test_page__says_that_the_folder_is_read_only(start, own_run: Path):
    server = start()
    assert '"unwritable":""' in request(server, f"/{server.token}/")[1]
    own_run.chmod(0o555)
    try:
        if os.access(own_run, os.W_OK):
            pytest.skip("this user may write anywhere")
        assert f'"unwritable":"{own_run}"' in request(server, f"/{server.token}/")[1]
    finally:
        own_run.chmod(0o755)


def test_post__of_a_page_whose_run_was_made_again_stores_nothing(start, own_run: Path):
    server = start()
    body, before = about(server, 2, "bad"), ids(own_run)
    small_detector(replace(small_graph(300, 4), ids=pa.array(before)), views=["purified"], seed=9, run_dir=own_run)
    assert ids(own_run) != before
    status, text = request(server, f"/{server.token}/verdicts", body)
    assert (status, "reload the page" in text) == (409, True)
    assert not (own_run / verdicts.FILE).exists()
    of = json.loads(body)["of"]
    assert request(server, f"/{server.token}/explained?rank=2&of={of}")[0] == 409
    assert post(server, 2, "bad")["verdict"] == "bad"  # of the page as it is now
    assert verdicts.latest(own_run).by_id() == {ids(own_run)[1]: "bad"}
    assert rows(server)["rows"][1]["id"] == ids(own_run)[1]
