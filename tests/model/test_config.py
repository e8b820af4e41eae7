"""The configuration names what is wrong with it, and survives the way through ``config.json``."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from polymath.model.config import INDEXED, LINEAR, ModelConfig, ModelConfigError, read, resolve


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9, n_routed_experts is 8"),
        ({"hidden_size": 100}, "hidden_size is 100, expected a multiple of 32"),
        ({"index_head_dim": 16}, "index_head_dim is 16, expected a multiple of 32"),
        ({"num_hidden_layers": 3}, "layer_types has 4 entries, num_hidden_layers is 3"),
        (
            {"layer_types": (LINEAR, "full_attention", LINEAR, INDEXED)},
            "layer_types[1] is 'full_attention', "
            "expected 'linear_attention' or 'indexed_attention'",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected at least 1"),
        ({"index_topk": 0}, "index_topk is 0, expected at least 1"),
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim is 64, this version has no rotation (0)"),
        ({"linear_lower_bound": 1.0}, "linear_lower_bound is 1.0, expected less than 0"),
        ({"first_k_dense_replace": 5}, "first_k_dense_replace is 5, num_hidden_layers is 4"),
        ({"n_shared_experts": -1}, "n_shared_experts is -1, expected 0 or more"),
        ({"eos_token_id": 1024}, "eos_token_id is 1024, vocab_size is 1024"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_field(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelConfigError) as caught:
        ModelConfig(**change)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_chunk_must_hold_its_decay_in_float32() -> None:
    with pytest.raises(ModelConfigError, match="^chunk_size is 32, expected an even number with"):
        ModelConfig(chunk_size=32)
    assert ModelConfig(chunk_size=32, linear_lower_bound=-2.5).chunk_size == 32


def test_json_round_trip_keeps_every_field_but_the_path() -> None:
    config = ModelConfig(path="x", hidden_size=64, layer_types=[INDEXED], num_hidden_layers=1)  # type: ignore[arg-type]
    text = config.to_json()
    assert ModelConfig.from_json(text, "x") == config
    assert "path" not in json.loads(text)
    assert json.loads(text)["model_type"] == "polymath_hybrid"
    assert json.loads(text)["architectures"] == ["PolymathHybridForCausalLM"]


def test_keys_of_other_tools_are_ignored_and_missing_ones_named() -> None:
    found = json.loads(ModelConfig().to_json())
    found["transformers_version"] = "5.19.0"
    ModelConfig.from_json(json.dumps(found))
    del found["kv_lora_rank"]
    with pytest.raises(ModelConfigError, match=r"^config\.json: kv_lora_rank is missing$"):
        ModelConfig.from_json(json.dumps(found))


def test_another_family_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_next"}')
    with pytest.raises(ModelConfigError) as caught:
        read(str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path}/config.json: model_type is 'qwen3_next', expected 'polymath_hybrid'"
    )


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_an_absent_or_broken_file_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelConfigError, match="config.json") as caught:
        read(str(tmp_path))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_difference_to_a_checkpoint_names_the_field() -> None:
    asked, found = ModelConfig(), ModelConfig(path="ckpt", index_topk=32)
    asked.require_same(dataclasses.replace(asked, path="elsewhere"), "elsewhere")
    with pytest.raises(ModelConfigError) as caught:
        asked.require_same(found, "ckpt")
    assert str(caught.value) == "ckpt: index_topk is 32, the configuration says 64"


def test_the_starter_is_packaged_beside_the_model() -> None:
    assert resolve("starter").name == "starter"
    assert (resolve("starter").parent / "config.py").is_file()
    assert resolve("runs/a") == Path("runs/a")


def test_reading_configuration_loads_no_torch() -> None:
    code = "import sys, polymath.model.config; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-P", "-c", code], timeout=60, check=False).returncode == 0
    )
