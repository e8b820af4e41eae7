"""The checkpoint's ``config.json`` as vLLM and transformers read it."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from polymath.model.vllm import MODEL_TYPE


class PolymathHybridConfig(PretrainedConfig):
    """Every field of ``polymath.model.config.ModelConfig``, by the same name.

    ``head_dim`` and ``num_key_value_heads`` are what vLLM sizes cache pages with. One token's entry
    of a sparse attention layer is its latent and its index key; vLLM counts a key and a value of
    ``head_dim`` each, so ``head_dim`` is half an entry.
    """

    model_type = MODEL_TYPE

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        if "kv_lora_rank" in fields:
            self.num_key_value_heads = 1
            self.head_dim = cache_width(self) // 2


def cache_width(config: Any) -> int:
    """Values that a sparse attention layer caches per token: latent, rotary part, index key."""
    width: int = config.kv_lora_rank + config.qk_rope_head_dim + config.index_head_dim
    if width % 2:
        raise ValueError(f"kv_lora_rank + qk_rope_head_dim + index_head_dim = {width} must be even")
    return width
