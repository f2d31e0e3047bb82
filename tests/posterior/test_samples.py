"""Samples of others: what is not of a legal model is refused by the name of its file. Checkpoints: whole or absent."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hcm_scale.base import files
from hcm_scale.model import HopModel
from hcm_scale.posterior import samples

MODEL = {"num_attributes": 3, "num_classes": 4, "width": 8, "num_layers": 2, "head_width": 6, "directed": False}


@pytest.fixture
def folder(tmp_path) -> Path:
    hashes = [samples.write_sample(tmp_path, i, HopModel(**MODEL, seed=i).state_dict()) for i in range(2)]
    samples.seal_samples(tmp_path, hashes, MODEL | {"last_relu": False, "seed": 0})
    return tmp_path


def change_manifest(folder: Path, **body: object) -> None:
    path = folder / files.MANIFEST
    files.write_sealed(path, files.read_sealed(path) | body)


def test_samples__come_back_as_they_were_written(folder):
    for index, sample in enumerate(samples.open_samples(folder)):
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
    path = samples.sample_path(folder, 1)
    sample = load_file(path)
    change(sample)
    save_file(sample, path)
    change_manifest(folder, hashes=[files.hash_file(samples.sample_path(folder, i)) for i in range(2)])
    with pytest.raises(
        files.FolderError, match=rf"sample-00001\.safetensors is not of the model in its manifest: {told}"
    ):
        samples.open_samples(folder)


@pytest.mark.parametrize("content", [None, b"torn", b"\xff" * 64])
def test_sample__that_is_missing_or_torn_is_named(folder, content):
    path = samples.sample_path(folder, 1)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(files.FolderError, match=r"sample-00001\.safetensors is (missing|damaged)"):
        samples.open_samples(folder)


def test_sample__with_nan_is_named(folder):
    path = samples.sample_path(folder, 1)
    sample = load_file(path)
    sample["head.0.weight"][2, 3] = torch.nan
    save_file(sample, path)
    change_manifest(folder, hashes=[files.hash_file(samples.sample_path(folder, i)) for i in range(2)])
    with pytest.raises(files.FolderError, match=r"sample-00001\.safetensors: head\.0\.weight holds NaN"):
        list(samples.open_samples(folder))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ([], "names no model"),
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
    with pytest.raises(files.FolderError, match=rf"manifest\.json is damaged: .*{told}"):
        samples.open_samples(folder)


def test_samples__are_at_least_one(folder):
    change_manifest(folder, hashes=[])
    with pytest.raises(files.FolderError, match=r"manifest\.json is damaged: it names no model, or no samples"):
        samples.open_samples(folder)


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"parameters": torch.full((3,), value), "state.square": torch.arange(3.0)}


def test_load__returns_the_newest_bit_for_bit(tmp_path):
    assert samples.load_checkpoint(tmp_path / "none", tmp_path) is None
    for step in (5, 10, 15):
        samples.save_checkpoint(tmp_path, step, tensors(step / 7))
    num_done, found, _ = samples.load_checkpoint(tmp_path, tmp_path)
    assert num_done == 15
    assert found.keys() == tensors(0).keys()
    assert all(torch.equal(found[name], value) for name, value in tensors(15 / 7).items())


def test_save__keeps_the_last_two(tmp_path):
    for step in (5, 10, 100_000_000):
        samples.save_checkpoint(tmp_path, step, tensors(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-{step:09d}.{suffix}" for step in (10, 100_000_000) for suffix in ("json", "safetensors")
    ]


@pytest.mark.parametrize("damage", ["flip", "tear", "remove", "note", "count", "nested"])
def test_load__passes_over_a_damaged_one_with_a_warning(tmp_path, damage):
    samples.save_checkpoint(tmp_path, 5, tensors(5))
    samples.save_checkpoint(tmp_path, 10, tensors(10))
    data = tmp_path / "step-000000010.safetensors"
    if damage == "flip":
        content = bytearray(data.read_bytes())
        content[-1] ^= 1
        data.write_bytes(content)
    elif damage == "tear":
        data.write_bytes(data.read_bytes()[:20])
    elif damage == "remove":
        data.unlink()
    elif damage == "count":
        note = data.with_suffix(".json")
        note.write_text(note.read_text().replace('"num_done": 10', '"num_done": 11'))
    else:
        data.with_suffix(".json").write_text("{" if damage == "note" else "[" * 100_000)
    with pytest.warns(UserWarning, match="step-000000010 is damaged"):
        num_done, found, _ = samples.load_checkpoint(tmp_path, tmp_path)
    assert num_done == 5
    assert torch.equal(found["parameters"], tensors(5)["parameters"])


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"?"), lambda path: path.unlink()])
def test_load__passes_over_one_that_counts_a_damaged_sample(tmp_path, damage):
    folder, hashes = tmp_path / "samples", []
    for index in range(2):
        hashes.append(samples.write_sample(folder, index, tensors(index)))
        samples.save_checkpoint(tmp_path, 5 + index, tensors(index), hashes)
    assert samples.load_checkpoint(tmp_path, folder).sample_hashes == hashes
    damage(samples.sample_path(folder, 1))
    with pytest.warns(UserWarning, match="sample-00001.safetensors is damaged"):
        found = samples.load_checkpoint(tmp_path, folder)
    assert (found.num_done, found.sample_hashes) == (5, hashes[:1])
    damage(samples.sample_path(folder, 0))
    with pytest.warns(UserWarning, match="sample-00000.safetensors is damaged"):
        assert samples.load_checkpoint(tmp_path, folder) is None


def test_load__ignores_tensors_without_a_note(tmp_path):
    samples.save_checkpoint(tmp_path, 5, tensors(5))
    (tmp_path / "step-000000010.safetensors").write_bytes(b"half written")
    assert samples.load_checkpoint(tmp_path, tmp_path).num_done == 5
