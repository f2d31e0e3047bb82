"""Checkpoints: whole or absent, the last two."""

import pytest
import torch

from hcm_scale.posterior.loop import truncate_journal
from hcm_scale.posterior.samples import load_checkpoint, sample_path, save_checkpoint, write_sample


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"parameters": torch.full((3,), value), "state.square": torch.arange(3.0)}


def test_load__returns_the_newest_bit_for_bit(tmp_path):
    assert load_checkpoint(tmp_path / "none", tmp_path) is None
    for step in (5, 10, 15):
        save_checkpoint(tmp_path, step, tensors(step / 7))
    num_done, found, _ = load_checkpoint(tmp_path, tmp_path)
    assert num_done == 15
    assert found.keys() == tensors(0).keys()
    assert all(torch.equal(found[name], value) for name, value in tensors(15 / 7).items())


def test_save__keeps_the_last_two(tmp_path):
    for step in (5, 10, 100_000_000):
        save_checkpoint(tmp_path, step, tensors(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-{step:09d}.{suffix}" for step in (10, 100_000_000) for suffix in ("json", "safetensors")
    ]


@pytest.mark.parametrize("damage", ["flip", "tear", "remove", "note", "count", "nested"])
def test_load__passes_over_a_damaged_one_with_a_warning(tmp_path, damage):
    save_checkpoint(tmp_path, 5, tensors(5))
    save_checkpoint(tmp_path, 10, tensors(10))
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
        num_done, found, _ = load_checkpoint(tmp_path, tmp_path)
    assert num_done == 5
    assert torch.equal(found["parameters"], tensors(5)["parameters"])


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"?"), lambda path: path.unlink()])
def test_load__passes_over_one_that_counts_a_damaged_sample(tmp_path, damage):
    samples, hashes = tmp_path / "samples", []
    for index in range(2):
        hashes.append(write_sample(samples, index, tensors(index)))
        save_checkpoint(tmp_path, 5 + index, tensors(index), hashes)
    assert load_checkpoint(tmp_path, samples).sample_hashes == hashes
    damage(sample_path(samples, 1))
    with pytest.warns(UserWarning, match="sample-00001.safetensors is damaged"):
        found = load_checkpoint(tmp_path, samples)
    assert (found.num_done, found.sample_hashes) == (5, hashes[:1])
    damage(sample_path(samples, 0))
    with pytest.warns(UserWarning, match="sample-00000.safetensors is damaged"):
        assert load_checkpoint(tmp_path, samples) is None


def test_load__ignores_tensors_without_a_note(tmp_path):
    save_checkpoint(tmp_path, 5, tensors(5))
    (tmp_path / "step-000000010.safetensors").write_bytes(b"half written")
    assert load_checkpoint(tmp_path, tmp_path).num_done == 5


def test_keep_until__keeps_the_line_of_the_step_itself(tmp_path):
    path = tmp_path / "metrics.jsonl"
    torn = b'{"step": \xb4}\n' + b"[" * 100_000 + b'\n[]\n{"step": 12}\n{"st'
    path.write_bytes(b'{"step": 4}\n{"step": 8}\n' + torn)
    truncate_journal(path, 8)
    assert path.read_text() == '{"step": 4}\n{"step": 8}\n'


def test_checkpoint__of_another_number_of_ranks_is_not_gone_on_with(tmp_path):
    save_checkpoint(tmp_path, 5, tensors(5), num_ranks=2)
    assert load_checkpoint(tmp_path, tmp_path, num_ranks=2).num_done == 5
    assert load_checkpoint(tmp_path, tmp_path) is None
