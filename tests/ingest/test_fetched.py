"""Tables and results at URLs: a real S3 server and a real web server on this machine."""

import functools
import http.server
import io
import json
import logging
import os
import sys
import threading
import time
import urllib.request

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hcm_scale.config import Config, FolderGraph, MatrixGraph, TablesGraph
from hcm_scale.ingest import remote as fetched
from hcm_scale.ingest.readers import InputError
from hcm_scale.run import pipeline
from hcm_scale.run.sources import reader, stamp

EDGES, NODES = {"source": [0, 1, 2], "target": [1, 2, 3]}, {"id": [0, 1, 2, 3], "s": [0.5, 1.0, 2.0, 4.0]}


@pytest.fixture(scope="module")
def s3_server():
    """The address of an S3 server."""
    pytest.importorskip("moto.server")
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(s3_server, monkeypatch):
    """Puts bytes into the bucket `tables`, which is empty first."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    _post(f"{s3_server}/moto-api/reset", b"")
    client = pytest.importorskip("boto3").client("s3")
    client.create_bucket(Bucket="tables")
    yield lambda key, content: client.put_object(Bucket="tables", Key=key, Body=content)
    _post(f"{s3_server}/moto-api/reset-auth", b"Infinity")


def _post(url, body):
    headers = {"Content-Type": "application/octet-stream"}
    urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST")).close()


def packed(columns):
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def test_tables__are_read_from_s3_as_from_folders(bucket, tmp_path):
    bucket("e dges/part-0.parquet", packed(EDGES))
    bucket("nodes/land=at/part-0.parquet", packed({k: v[:2] for k, v in NODES.items()}))
    bucket("nodes/land=de/part-0.parquet", packed({k: v[2:] for k, v in NODES.items()}))
    bucket("nodes/_SUCCESS", b"")
    bucket("nodes/land=at/.part-0.parquet.crc", b"crc")
    bucket("nodes/land=at/_old.parquet", b"broken")
    for nodes in ("nodes", "nodes/", "nodes/land=*/*.parquet", "nodes/**/part-?.parquet"):
        graph = TablesGraph(path="s3://tables/e dges/part-0.parquet", nodes=f"s3://tables/{nodes}")
        made = reader(graph)(tmp_path / "graph")
        assert made.columns == ("s", "land=at", "land=de")
        assert made.x[:, 0].tolist() == NODES["s"]
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_stamp__of_s3_changes_with_the_files(bucket):
    bucket("edges.csv", b"source,target\n0,1\n")
    graph = TablesGraph(path="s3://tables/edges.csv")
    before = stamp(graph)
    assert before == stamp(graph)
    time.sleep(1.1)  # S3 tells seconds
    bucket("edges.csv", b"source,target\n0,2\n")
    assert stamp(graph) != before
    graph = TablesGraph(path="s3://tables/*.csv")
    before = stamp(graph)
    bucket("_more.csv", b"source,target\n0,1\n")
    assert stamp(graph) == before
    bucket("more.csv", b"source,target\n0,1\n")
    assert stamp(graph) != before


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3://nowhere/edges.csv", r"graph\.path=s3://nowhere/edges\.csv: there is no such bucket"),
        ("s3://tables/none.csv", r"graph\.path='s3://tables/none\.csv' names no file; legal are a file, a folder or"),
        ("s3://tables/note.txt/*", r"graph\.path='s3://tables/note\.txt/\*' names no file"),
        ("s3://tables/only", r"graph\.path='s3://tables/only' names no file that ends in one of \.parquet, \.pq, "),
        ("s3://tables/bad.parquet", r"^s3://tables/bad\.parquet cannot be read as Parquet: "),
        ("s3://me:hush@tables/edges.csv", r"^graph\.path=s3://\.\.\. holds a secret, which the run's folder would"),
        ("s3:///edges.csv", r"graph\.path=s3:///edges\.csv: it names no bucket"),
        ("nonsense://x/edges.csv", r"graph\.path=nonsense://x/edges\.csv: Protocol not known: nonsense"),
    ],
)
def test_faults__are_one_line_that_names_the_option(bucket, tmp_path, path, message):
    for key in ("only/note.txt", "bad.parquet", "note.txt"):
        bucket(key, b"PAR1 not a table")
    with pytest.raises(ValueError, match=message) as caught:
        reader(TablesGraph(path=path))(tmp_path / "graph")
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_no_credentials__are_named(bucket, s3_server, tmp_path, monkeypatch):
    bucket("edges.csv", b"source,target\n0,1\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    _post(f"{s3_server}/moto-api/reset-auth", b"0")
    message = r"^graph\.path=s3://tables/edges\.csv: access is denied; credentials come from the environment or ~/\.aws"
    with pytest.raises(ValueError, match=message):
        stamp(TablesGraph(path="s3://tables/edges.csv"))


@pytest.mark.gate  # the client tries again for some seconds
def test_no_server__is_told(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ValueError, match=r"^graph\.path=s3://tables/e\.csv: .*NETWORK_CONNECTION"):
        stamp(TablesGraph(path="s3://tables/e.csv"))


def test_run__reads_tables_from_a_bucket(bucket, tmp_path):
    bucket("edges.parquet", packed({"source": range(60), "target": range(1, 61), "amount": [1.5] * 60}))
    bucket("nodes.parquet", packed({"id": range(61), "s": [i % 7 for i in range(61)]}))
    config = Config(graph=TablesGraph(path="s3://tables/edges.parquet", nodes="s3://tables/nodes.parquet"))
    config.run_dir = str(tmp_path / "run")
    config.posterior.num_samples = config.posterior.burn_in_steps = 1
    pipeline.run(config)
    report = json.loads((tmp_path / "run" / "report" / "report.json").read_text())
    assert [row["column"] for row in report["columns"]] == ["source", "target", "amount", "id", "s"]


@pytest.fixture
def web(tmp_path):
    """The address of a web server over the folder `web`."""
    (tmp_path / "web").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path / "web"))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_tables__are_read_from_a_web_server(web, tmp_path):
    pytest.importorskip("aiohttp")
    path = tmp_path / "web" / "edges.csv"
    path.write_text("source,target\n0,1\n1,2\n")
    graph = TablesGraph(path=f"{web}/edges.csv?version=1", featureless="degree")
    before = stamp(graph)
    assert reader(graph)(tmp_path / "graph").num_edges == 2
    path.write_text("source,target\n0,1\n1,7\n")
    os.utime(path, (0, 0))
    assert stamp(graph) != before
    with pytest.raises(ValueError, match=r"^graph\.path='?http://.*/none\.csv'?:? "):
        stamp(TablesGraph(path=f"{web}/none.csv"))


def test_extra__is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ValueError, match=r"graph\.path=https://x/e\.csv: https:// needs the extra remote, pip install"):
        stamp(TablesGraph(path="https://x/e.csv"))


def test_file_urls__are_paths(tmp_path):
    path = tmp_path / "my edges.csv"
    path.write_text("source,target\n0,1\n")
    graph = TablesGraph(path=f"file://{tmp_path}/my%20edges.csv", featureless="degree")
    assert stamp(graph) == stamp(TablesGraph(path=str(path)))
    assert reader(graph)(tmp_path / "graph").num_edges == 1


def test_matrices__are_read_from_urls_and_folders_are_not(bucket, tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 2]]), x=np.ones((3, 2)))
    bucket("g.npz", (tmp_path / "g.npz").read_bytes())
    assert reader(MatrixGraph(path="s3://tables/g.npz"))(tmp_path / "graph").num_nodes == 3
    with pytest.raises(ValueError, match=r"graph\.path=s3://tables/g: graph=folder takes a folder of this machine"):
        reader(FolderGraph(path="s3://tables/g"))


@pytest.mark.parametrize("option", ["run_dir", "share_dir"])
def test_folders_of_a_run__are_no_urls(option):
    config = Config()
    setattr(config, option, "s3://b/run")
    with pytest.raises(ValueError, match=rf"{option}=s3://b/run is a URL, and a run works in a folder"):
        pipeline.run(config)


def test_names__that_lead_out_of_the_folder_are_refused(bucket, tmp_path, monkeypatch):
    bucket("in/a.csv", b"source,target\n0,1\n")
    found = fetched._find("graph.path", "s3://tables/in")

    class Outside:
        path = "tables/in/../../../outside.csv"

    monkeypatch.setattr(fetched, "_find", lambda *_: (*found[:2], [Outside()]))
    with pytest.raises(InputError, match="lists names that lead out of it"):
        reader(TablesGraph(path="s3://tables/in"))(tmp_path / "graph")
