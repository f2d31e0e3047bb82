"""Secrets in addresses: refused at the door, and shown neither on the screen nor in a file."""

import pytest

from hcm_scale import HCM
from hcm_scale.base import remote
from hcm_scale.cli.main import main

ADDRESSES = (
    "postgresql://me:HUSH@host/db",
    "postgresql://me:a@HUSH@host/db",
    "postgresql://me:a/HUSH@host/db",
    "postgresql://me:a?HUSH@host:port/db",
    "postgresql://host/db?password=HUSH",
    "postgresql://host/db?user=me&PASSWORD=HUSH",
    "s3://me:HUSH@bucket/edges.csv",
    "https://me:HUSH@host/edges.csv",
    "https://HUSH@host/edges.csv",
    "https://host/edges.csv?X-Amz-Credential=me&X-Amz-Signature=HUSH",
    "https://host/edges.csv?X-Goog-Signature=HUSH",
    "https://host/edges.csv?sv=2020&sig=HUSH",
    "https://host/edges.csv?access_token=HUSH",
    "https://host/edges.csv?api_key=HUSH",
    "https://host/edges.csv#token=HUSH",
    "https://host/edges.csv?jwt=HUSH",
    "https://host/edges.csv?day=1&code=HUSH",
    "https://host/edges.csv?sas=HUSH",
    "https://host/edges.csv?session=HUSH",
    "https://host/edges.csv?bearer=HUSH",
    "https://host/edges.csv?%70assw%6Frd=HUSH",
    "host=h user=me password=HUSH",
    "host=h password = 'a HUSH' user=me",
    "Server=h;Uid=me;Pwd=HUSH",
    "AccountName=me;AccountKey=HUSH==",
)
PLACES = ("{}", "graph.path={}", "graph.edges={}", "graph.nodes='{}'", "track.uri={}", "run_dir={}")


@pytest.mark.parametrize("address", ADDRESSES)
def test_secret__in_an_address_is_refused_and_never_shown(address, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for place in PLACES:
        assert main(["run", place.format(address)]) != 0
        said = "".join(capfd.readouterr())
        assert "HUSH" not in said, place
        assert "holds a secret" in said, place
    with pytest.raises(ValueError, match="holds a secret") as refused:
        HCM(options={"share_dir": address}).fit(([0, 1], [1, 0]))
    assert "HUSH" not in str(refused.value)
    assert not list(tmp_path.rglob("*"))


def test_secret__in_a_query_is_refused_and_never_shown(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    scan = "postgres_scan('host=h password=HUSH', 'public', 't')"
    for words in (["graph.path=duckdb://", f"graph.edges=select a, b from {scan}"], [f"graph.path={scan}"]):
        assert main(["run", *words]) != 0
        assert "HUSH" not in "".join(capfd.readouterr())
    with pytest.raises(ValueError, match="password=\\*\\*\\*") as told, remote.naming_failures("graph.edges", scan):
        raise OSError("no route to host=h password=''a HUSH''")
    assert "HUSH" not in str(told.value)


def test_address__without_a_secret_passes_the_door(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    addresses = "https://host.invalid:8080/@me/edges.csv?day=1&country_code=de", "postgresql://me@host.invalid/db"
    for address in addresses:
        assert main(["run", address]) != 0
        assert "holds a secret" not in "".join(capfd.readouterr())
