"""Secrets in addresses: refused at the door, and shown neither on the screen nor in a file."""

import pytest

from hcm_scale import HCM
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
)
PLACES = ("{}", "graph.path={}", "graph.edges={}", "graph.nodes='{}'", "score.copy_to={}", "track.uri={}", "run_dir={}")


@pytest.mark.parametrize("address", ADDRESSES)
def test_secret__in_an_address_is_refused_and_never_shown(address, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for place in PLACES:
        assert main(["run", place.format(address)]) != 0
        said = "".join(capfd.readouterr())
        assert "HUSH" not in said, place
        assert "holds a secret" in said, place
    with pytest.raises(ValueError, match="holds a secret") as refused:
        HCM(options={"score.copy_to": address}).fit(([0, 1], [1, 0]))
    assert "HUSH" not in str(refused.value)
    assert not list(tmp_path.rglob("*"))


def test_address__without_a_secret_passes_the_door(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for address in ("https://host.invalid:8080/@me/edges.csv?day=1", "postgresql://me@host.invalid/db"):
        assert main(["run", address]) != 0
        assert "holds a secret" not in "".join(capfd.readouterr())
