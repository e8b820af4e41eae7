"""Checkpoints come back as they were; damage and mismatch are named; the digest sees every bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from polymath.model.checkpoint import (
    WEIGHTS,
    CheckpointError,
    digest,
    load,
    load_into,
    load_tensors,
    save,
    save_tensors,
)
from polymath.model.config import ModelConfig, ModelConfigError
from polymath.model.hybrid import HybridForCausalLM

CONFIG = ModelConfig(vocab_size=64, hidden_size=32, moe_intermediate_size=32)


@pytest.fixture(scope="module")
def model() -> HybridForCausalLM:
    torch.manual_seed(0)
    model = HybridForCausalLM(CONFIG)
    model.init_weights()
    return model


def some_tensors() -> dict[str, Tensor]:
    return {
        "a.weight": torch.arange(6.0).reshape(2, 3),
        "b.weight": torch.tensor([1.0, -0.0], dtype=torch.bfloat16),
        "count": torch.tensor(3),
    }


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path, model: HybridForCausalLM) -> None:
    fingerprint = save(tmp_path / "new", CONFIG, model.state_dict())
    config, tensors = load(tmp_path / "new")
    assert config.architecture() == CONFIG.architecture()
    assert digest(tensors) == digest(model.state_dict()) == fingerprint
    fresh = HybridForCausalLM(config)
    load_into(fresh, tensors, "new")
    assert digest(fresh.state_dict()) == fingerprint
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["config.json", WEIGHTS]


def test_half_precision_storage_spares_the_tensors_that_would_feel_it(
    tmp_path: Path, model: HybridForCausalLM
) -> None:
    fingerprint = save(tmp_path, CONFIG, model.state_dict(), torch.bfloat16)
    _, tensors = load(tmp_path)
    assert digest(tensors) == fingerprint
    full = {name for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    layer = "model.layers.0."
    assert layer + "self_attn.A_log" in full
    assert layer + "self_attn.q_conv1d.weight" in full
    assert layer + "mlp.gate.e_score_correction_bias" in full
    assert "model.layers.3.self_attn.indexer.k_norm.bias" in full
    assert tensors[layer + "mlp.experts.down_proj"].dtype == torch.bfloat16
    assert tensors["model.embed_tokens.weight"].dtype == torch.bfloat16
    fresh = HybridForCausalLM(CONFIG)
    load_into(fresh, tensors, "half")
    for name, tensor in fresh.state_dict().items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=2**-8, atol=0)


def test_saving_again_replaces_and_leaves_no_parts(tmp_path: Path) -> None:
    save_tensors(tmp_path / "w.safetensors", some_tensors())
    changed = {**some_tensors(), "count": torch.tensor(4)}
    save_tensors(tmp_path / "w.safetensors", changed)
    assert load_tensors(tmp_path / "w.safetensors")["count"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_file_cut_short_is_named_with_its_first_lost_tensor(
    tmp_path: Path, model: HybridForCausalLM, share: float
) -> None:
    save(tmp_path, CONFIG, model.state_dict())
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / WEIGHTS}: ")
    assert "\n" not in message
    if share >= 0.5:
        assert "cut short at tensor model." in message


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_tensors(file, some_tensors())
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 4
    file.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="digest differs"):
        load_tensors(file)


def test_what_is_missing_or_not_safetensors_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file"):
        load_tensors(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_bytes(b"\x02" + b"\0" * 7 + b"no" + b"more")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load_tensors(tmp_path / "text.safetensors")
    with pytest.raises(ModelConfigError, match=r"config\.json: cannot be read"):
        load(tmp_path)


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="file: cannot be written"):
        save(tmp_path / "file", CONFIG, some_tensors())
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_tensors(tmp_path / "file" / "w.safetensors", some_tensors())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "ckpt: model.norm.weight is missing"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(7)}),
            r"ckpt: model.norm.weight is \[7\], the model's is \[32\]",
        ),
        (lambda t: t.update(extra=torch.ones(1)), "ckpt: extra is not part of the model"),
    ],
)
def test_tensors_that_do_not_fit_are_named_and_nothing_is_loaded(
    model: HybridForCausalLM, change: object, message: str
) -> None:
    tensors = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    change(tensors)  # type: ignore[operator]
    before = digest(model.state_dict())
    with pytest.raises(CheckpointError, match=message):
        load_into(model, tensors, "ckpt")
    assert digest(model.state_dict()) == before


@given(byte=st.integers(0, 23), bit=st.integers(0, 7))
def test_the_digest_sees_every_bit(byte: int, bit: int) -> None:
    tensors = some_tensors()
    before = digest(tensors)
    tensors["a.weight"].view(torch.uint8).reshape(-1)[byte] ^= 1 << bit
    assert digest(tensors) != before


def test_the_digest_sees_names_types_and_shapes_but_not_order_or_layout() -> None:
    tensors = some_tensors()
    same = digest(tensors)
    assert digest(dict(reversed(tensors.items()))) == same
    strided = tensors["a.weight"].t().contiguous().t()
    assert digest({**tensors, "a.weight": strided}) == same
    renamed = {("c" if name == "count" else name): t for name, t in tensors.items()}
    others = [
        renamed,
        {**tensors, "a.weight": tensors["a.weight"].reshape(3, 2)},
        {**tensors, "a.weight": tensors["a.weight"].view(torch.int32)},
        {**tensors, "b.weight": tensors["b.weight"].abs()},
        {name: t for name, t in tensors.items() if name != "count"},
    ]
    assert same not in {digest(other) for other in others}
