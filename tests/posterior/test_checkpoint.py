"""Checkpoints: whole or absent, the last two."""

import pytest
import torch

from hcm_scale.posterior.checkpoint import load_checkpoint, save_checkpoint
from hcm_scale.posterior.journal import keep_until


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"parameters": torch.full((3,), value), "state.square": torch.arange(3.0)}


def test_load__returns_the_newest_bit_for_bit(tmp_path):
    assert load_checkpoint(tmp_path / "none") is None
    for step in (5, 10, 15):
        save_checkpoint(tmp_path, step, tensors(step / 7))
    num_done, found = load_checkpoint(tmp_path)
    assert num_done == 15
    assert found.keys() == tensors(0).keys()
    assert all(torch.equal(found[name], value) for name, value in tensors(15 / 7).items())


def test_save__keeps_the_last_two(tmp_path):
    for step in (5, 10, 100_000_000):
        save_checkpoint(tmp_path, step, tensors(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-{step:09d}.{suffix}" for step in (10, 100_000_000) for suffix in ("json", "safetensors")
    ]


@pytest.mark.parametrize("damage", ["flip", "tear", "remove", "note"])
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
    else:
        data.with_suffix(".json").write_text("{")
    with pytest.warns(UserWarning, match="step-000000010 is damaged"):
        num_done, found = load_checkpoint(tmp_path)
    assert num_done == 5
    assert torch.equal(found["parameters"], tensors(5)["parameters"])


def test_load__ignores_tensors_without_a_note(tmp_path):
    save_checkpoint(tmp_path, 5, tensors(5))
    (tmp_path / "step-000000010.safetensors").write_bytes(b"half written")
    assert load_checkpoint(tmp_path)[0] == 5


def test_keep_until__keeps_the_line_of_the_step_itself(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 4}\n{"step": 8}\n{"step": 12}\n{"st')
    keep_until(path, 8)
    assert path.read_text() == '{"step": 4}\n{"step": 8}\n'
