"""Parameter samples of others: what is not a sample of a legal model is refused by the name of its file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hcm_scale.base.files import MANIFEST, FolderError, hash_file, read_sealed, write_sealed
from hcm_scale.model import HopModel
from hcm_scale.posterior.samples import open_samples, sample_path, seal_samples, write_sample

MODEL = {"num_attributes": 3, "num_classes": 4, "width": 8, "num_layers": 2, "head_width": 6, "directed": False}


@pytest.fixture
def folder(tmp_path) -> Path:
    hashes = [write_sample(tmp_path, i, HopModel(**MODEL, seed=i).state_dict()) for i in range(2)]
    seal_samples(tmp_path, hashes, MODEL | {"last_relu": False, "seed": 0})
    return tmp_path


def change_manifest(folder: Path, **body: object) -> None:
    path = folder / MANIFEST
    write_sealed(path, read_sealed(path) | body)


def test_samples__come_back_as_they_were_written(folder):
    for index, sample in enumerate(open_samples(folder)):
        expected = HopModel(**MODEL, seed=index).state_dict()
        assert sample.keys() == expected.keys()
        assert all(torch.equal(sample[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda sample: sample.pop("head.1.bias"), "head.1.bias is missing"),
        (lambda sample: sample.update(more=torch.zeros(1)), "more is"),
        (lambda sample: sample.update({"encoder.0.weight": torch.zeros(8, 3)}), "encoder.0.weight is"),
        (lambda sample: sample.update({"encoder.0.bias": torch.zeros(8, dtype=torch.float64)}), "encoder.0.bias is"),
    ],
)
def test_sample__that_is_not_of_the_model_is_refused_when_the_folder_is_opened(folder, change, told):
    path = sample_path(folder, 1)
    sample = load_file(path)
    change(sample)
    save_file(sample, path)
    change_manifest(folder, hashes=[hash_file(sample_path(folder, i)) for i in range(2)])
    with pytest.raises(FolderError, match=rf"sample-00001\.safetensors is not of the model in its manifest: {told}"):
        open_samples(folder)


@pytest.mark.parametrize("content", [None, b"torn", b"\xff" * 64])
def test_sample__that_is_missing_or_torn_is_named(folder, content):
    path = sample_path(folder, 1)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(FolderError, match=r"sample-00001\.safetensors is (missing|damaged)"):
        open_samples(folder)


def test_sample__with_nan_is_named(folder):
    path = sample_path(folder, 1)
    sample = load_file(path)
    sample["head.0.weight"][2, 3] = torch.nan
    save_file(sample, path)
    change_manifest(folder, hashes=[hash_file(sample_path(folder, i)) for i in range(2)])
    with pytest.raises(FolderError, match=r"sample-00001\.safetensors: head\.0\.weight holds NaN"):
        list(open_samples(folder))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ([], "tells of no model"),
        (MODEL | {"width": 10**9}, r"model\.width=1000000000 is not legal"),
        (MODEL | {"num_layers": 10**9}, r"model\.num_layers=1000000000 is not legal"),
        (MODEL | {"width": "8"}, r"model\.width='8' is not legal"),
        (MODEL | {"directed": 1}, r"model\.directed=1 is not legal"),
        (MODEL | {"seed": 10**30}, r"model\.seed=10+ is not legal"),
        (MODEL | {"foo": 1}, r"model\.foo=1 is not legal"),
        ({name: MODEL[name] for name in MODEL if name != "width"}, r"model\.width is missing"),
    ],
)
def test_model__that_is_not_legal_is_refused(folder, model, told):
    change_manifest(folder, model=model)
    with pytest.raises(FolderError, match=rf"manifest\.json is damaged: .*{told}"):
        open_samples(folder)


def test_samples__are_at_least_one(folder):
    change_manifest(folder, hashes=[])
    with pytest.raises(FolderError, match=r"manifest\.json is damaged: it tells of no model, or of no samples"):
        open_samples(folder)
